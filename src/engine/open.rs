//! Opening: everything that is taken, and then everything that is read.

use std::sync::Arc;

use super::load::{LoadProgress, Tiered, experts_bytes, load_bytes, load_card, load_ram, load_stage};
use super::vision::Vision;
use super::{BuiltStage, EngineError, OpenOptions};
use crate::backend::{ArenaSizes, Backend, BackendError};
use crate::experts::{ExpertPlan, Experts};
use crate::gguf::ModelFiles;
use crate::program::Stage;
use crate::schedule::StageRunner;

/// A device with its stage, whose arenas are open.
type Opened = (Box<dyn Backend>, Arc<Stage>);

/// Takes everything, in the order in which a refusal costs least: code on all devices, arenas on all devices, RAM, what programs
/// need beside that, and last the right to copy from RAM without a detour. Nothing is read from files before all of it is there.
pub fn take_memory(
    files: &Arc<ModelFiles>,
    mut built: Vec<BuiltStage>,
    options: &OpenOptions,
) -> Result<(Vec<StageRunner>, Option<Experts>), EngineError> {
    for BuiltStage { stage, backend, .. } in &mut built {
        backend.load_code(stage)?;
    }
    let mut opened = Vec::with_capacity(built.len());
    for BuiltStage { stage, mut backend, .. } in built {
        let scratch_bytes = backend.scratch_bytes(&stage)?;
        if stage.lent_bytes > 0 && !backend.lends_slots() {
            let problem = "it cannot lay buffers of prompts on slots of experts".into();
            return Err(BackendError::Rejected { device: backend.facts().id.clone(), problem }.into());
        }
        backend.open(ArenaSizes { scratch_bytes, ..ArenaSizes::of(&stage) })?;
        opened.push((backend, stage));
    }
    let mut experts = open_experts(files, &opened, options)?;
    let runners = opened.into_iter().map(|(backend, stage)| StageRunner::new(backend, stage));
    let mut runners = runners.collect::<Result<Vec<_>, _>>()?;
    if let Some(experts) = &mut experts {
        experts.pin(&devices(&mut runners));
    }
    Ok((runners, experts))
}

pub fn devices(runners: &mut [StageRunner]) -> Vec<&mut dyn Backend> {
    runners.iter_mut().map(|runner| runner.backend.as_mut() as &mut dyn Backend).collect()
}

/// Reads all weights to where they stay.
pub fn load(
    files: &ModelFiles,
    runners: &mut [StageRunner],
    experts: Option<&mut Experts>,
    vision: Option<&mut Vision>,
    options: &OpenOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<(), EngineError> {
    let tiered = Tiered::of(experts.as_deref());
    let of_stages: u64 = runners.iter().map(|runner| load_bytes(&runner.stage, &tiered)).sum();
    let of_vision = vision.as_deref().map_or(0, Vision::load_bytes);
    let total_bytes = of_stages + of_vision + experts.as_deref().map_or(0, |experts| experts_bytes(experts, runners.len()));
    let mut before_bytes = 0;
    for StageRunner { backend, stage, .. } in runners.iter_mut() {
        let mut advance = |p: LoadProgress| progress(LoadProgress { done_bytes: before_bytes + p.done_bytes, total_bytes });
        load_stage(files, stage, &tiered, backend.as_mut(), &options.cancel, &mut advance)?;
        before_bytes += load_bytes(stage, &tiered);
    }
    if let Some(experts) = experts {
        let mut advance = |p: LoadProgress| progress(LoadProgress { done_bytes: before_bytes + p.done_bytes, total_bytes });
        load_ram(files, experts, &options.cancel, &mut advance)?;
        before_bytes += experts_bytes(experts, 0);
        for (i, StageRunner { backend, stage, .. }) in runners.iter_mut().enumerate() {
            let mut last_bytes = 0;
            let mut advance = |p: LoadProgress| {
                last_bytes = p.done_bytes;
                progress(LoadProgress { done_bytes: before_bytes + p.done_bytes, total_bytes });
            };
            load_card(files, experts, (i, stage), backend.as_mut(), &options.cancel, &mut advance)?;
            before_bytes += last_bytes;
        }
    }
    if let Some(vision) = vision {
        let mut advance = |p: LoadProgress| progress(LoadProgress { done_bytes: before_bytes + p.done_bytes, total_bytes });
        vision.load(&options.cancel, &mut advance)?;
    }
    Ok(())
}

/// Takes the memory of the tiers behind partly held experts, if there are any.
fn open_experts(files: &Arc<ModelFiles>, opened: &[Opened], options: &OpenOptions) -> Result<Option<Experts>, EngineError> {
    let stages: Vec<Arc<Stage>> = opened.iter().map(|(_, stage)| Arc::clone(stage)).collect();
    let Some(plan) = ExpertPlan::of(&stages, &options.experts)? else { return Ok(None) };
    let devices: Vec<&dyn Backend> = opened.iter().map(|(backend, _)| backend.as_ref()).collect();
    Ok(Some(plan.open(files, &devices, &options.host, options.experts.clone())?))
}
