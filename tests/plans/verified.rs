//! verified
