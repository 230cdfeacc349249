//! The ops, one small kernel each, straight from the formulas of `program::Op` and the model specification. The reference
//! kernels compute with float32 activations and are the oracle of every other path.

mod attention;
mod conv;
mod delta;
mod elementwise;
mod fast;
mod hyper;
mod index;
mod math;
mod matmul;
mod moe;
mod ngram;
mod norm;
mod window;

use super::exec::Kernel;
use super::layout::{Layout, check_operands};
use crate::program::Op;

pub use fast::Style;

/// Resolves the operands of an op. The reason in words if it cannot run here.
pub fn build(layout: &Layout<'_>, op: &Op) -> Result<Box<dyn Kernel>, String> {
    check_operands(op)?;
    Ok(match op {
        Op::Repeat { x, out } => Box::new(elementwise::Repeat::new(layout, *x, *out)?),
        Op::Add { x, y, scale } => Box::new(elementwise::Add::new(layout, *x, *y, *scale)?),
        Op::GatherOutputs { x, out } => Box::new(elementwise::Gather::new(layout, *x, *out)?),
        Op::JoinRows { x, out } => Box::new(elementwise::Join::new(layout, *x, *out)?),
        Op::LayerNorm { .. } => Box::new(norm::LayerNorm::new(layout, op)?),
        Op::WindowAttention { .. } => reference_or(layout, window::WindowAttention::new(layout, op)?, |style, op| {
            Box::new(fast::window::WindowAttention { op, level: style.level })
        }),
        Op::RmsNorm { .. } => Box::new(norm::RmsNorm::new(layout, op)?),
        Op::HeadNormRope { .. } => Box::new(norm::HeadNormRope::new(layout, op)?),
        Op::MatMul { x, parts } => match layout.style {
            None => Box::new(matmul::MatMul::new(layout, *x, parts)?),
            Some(style) => Box::new(fast::matmul::MatMul::new(layout, *x, parts, style)?),
        },
        Op::HcGate { .. } => Box::new(hyper::Gate::new(layout, op)?),
        Op::HcCombine { .. } => Box::new(hyper::Combine::new(layout, op)?),
        Op::KvAppend { .. } => Box::new(attention::KvAppend::new(layout, op)?),
        Op::Attention { .. } => reference_or(layout, attention::Attention::new(layout, op)?, |style, op| {
            Box::new(fast::attention::Attention { op, level: style.level })
        }),
        Op::IndexAppend { .. } => Box::new(index::IndexAppend::new(layout, op)?),
        Op::BlockSelect { .. } => Box::new(index::BlockSelect::new(layout, op)?),
        Op::CausalConv { .. } => Box::new(conv::CausalConv::new(layout, op)?),
        Op::DeltaRule { .. } => reference_or(layout, delta::DeltaRule::new(layout, op)?, |style, op| {
            Box::new(fast::delta::DeltaRule { op, level: style.level })
        }),
        Op::Router { .. } => Box::new(moe::Router::new(layout, op)?),
        Op::ExpertGated { .. } => {
            reference_or(layout, moe::ExpertGated::new(layout, op)?, |style, op| Box::new(fast::moe::ExpertGated { op, style }))
        }
        Op::ExpertDown { .. } => {
            reference_or(layout, moe::ExpertDown::new(layout, op)?, |style, op| Box::new(fast::moe::ExpertDown { op, style }))
        }
        Op::ExpertDownEach { .. } => reference_or(layout, moe::ExpertDownEach::new(layout, op)?, |style, op| {
            Box::new(fast::moe::ExpertDownEach { op, style })
        }),
        Op::ExpertSum { .. } => Box::new(moe::ExpertSum::new(layout, op)?),
        Op::HostExperts { .. } | Op::HostJoin { .. } | Op::Pause => return Err("this step is the host's".into()),
        Op::NgramGate { .. } => Box::new(ngram::NgramGate::new(layout, op)?),
    })
}

/// The reference kernel itself, or in fast mode what is made of its operands.
fn reference_or<K: Kernel + 'static>(
    layout: &Layout<'_>,
    reference: K,
    fast: impl FnOnce(Style, K) -> Box<dyn Kernel>,
) -> Box<dyn Kernel> {
    match layout.style {
        None => Box::new(reference),
        Some(style) => fast(style, reference),
    }
}

/// An op of another kind reached a constructor: a mistake in `build`.
fn wrong_op<T>() -> Result<T, String> {
    Err("the op is of another kind".into())
}
