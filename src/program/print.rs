//! A program for people to read.

use std::fmt;

use super::decl::{Program, Stage};
use super::op::View;
use crate::units::HumanBytes;

impl Program {
    fn fmt_views(&self, views: &[View]) -> String {
        let one = |v: &View| {
            let b = self.buffer(v.buffer);
            if v.offset == 0 && v.width == b.width {
                format!("{}[{}]", b.name, b.width)
            } else {
                format!("{}[{}..{}]", b.name, v.offset, v.offset + v.width)
            }
        };
        views.iter().map(one).collect::<Vec<_>>().join(" ")
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "stage {}: weights {}, state {}, work {}",
            self.name,
            HumanBytes(self.weights_bytes),
            HumanBytes(self.state_bytes),
            HumanBytes(self.work_bytes)
        )?;
        for program in &self.programs {
            writeln!(
                f,
                "program {} (up to {} rows, {} outputs, {} of work buffers)",
                program.name,
                program.shape.max_rows,
                program.shape.max_outputs,
                HumanBytes(program.work_bytes)
            )?;
            for (i, step) in program.steps.iter().enumerate() {
                let op = &step.op;
                let reads = program.fmt_views(&op.reads());
                let writes = program.fmt_views(&op.writes());
                write!(f, "{i:5} {:<28} {:<15} {reads} -> {writes}", step.name, op.kind())?;
                for id in op.weights() {
                    let w = self.weight(id);
                    write!(f, " {}:{}[{}x{}", w.tensor, w.format, w.rows, w.cols)?;
                    if w.experts > 1 {
                        write!(f, "x{}", w.experts)?;
                    }
                    if !w.holds_all() {
                        write!(f, ", {} slots", w.slots)?;
                    }
                    write!(f, "]")?;
                }
                if let Some(id) = op.state() {
                    write!(f, " state:{}", self.state(id).name)?;
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}
