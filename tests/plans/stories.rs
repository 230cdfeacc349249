//! The two failures that this planner must make impossible.
