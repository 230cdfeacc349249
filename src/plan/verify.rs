//! placeholder
use super::{Limits, Machine, Plan, PlanModel};
#[derive(Debug, Clone, PartialEq)]
pub struct Violation {
    pub rule: &'static str,
    pub what: String,
}
pub fn verify(_: &Plan, _: &PlanModel, _: &Machine, _: &Limits) -> Vec<Violation> {
    vec![]
}
