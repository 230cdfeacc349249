//! `strata inspect`: what is in a model file. Reads headers only, so any size is shown at once.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::args::ModelArgs;
use super::error::CliError;
use super::open::open_files;
use super::output::{Output, columns, printable};
use crate::engine::OpenOptions;
use crate::gguf::{Metadata, ModelFiles, TensorInfo, Totals};
use crate::model::{Extra, Model, Tensors};
use crate::units::HumanBytes;

const EXAMPLES: &str = "\
Examples:
  strata inspect model.gguf
  strata inspect model.gguf --tensors
  strata inspect model.gguf --json | jq '.metadata[\"general.name\"]'
  strata inspect model.gguf --program       the steps that are run for a token and for a prompt";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct InspectArgs {
    /// GGUF file; of a model in several files the first
    #[arg(value_name = "FILE", required_unless_present = "model")]
    file: Option<PathBuf>,
    /// The same, as other verbs name it
    #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
    model: Option<PathBuf>,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// Print the programs: every step with its buffers, weights and state
    #[arg(long, conflicts_with = "json")]
    program: bool,
    /// JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Parts of a model that are placed and read differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Dense,
    Experts,
    Embedding,
    Head,
    Ngram,
    Draft,
    Vision,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Dense => "dense layers",
            Part::Experts => "experts",
            Part::Embedding => "token embedding",
            Part::Head => "output head",
            Part::Ngram => "n-gram table",
            Part::Draft => "draft layer",
            Part::Vision => "vision",
        }
    }

    /// By the name of the tensor. Layers from `layers` on are the draft's.
    fn of(tensor: &str, layers: u64) -> Part {
        let layer = tensor.strip_prefix("blk.").and_then(|rest| rest.split('.').next()).and_then(|n| n.parse::<u64>().ok());
        let starts = |prefixes: &[&str]| prefixes.iter().any(|p| tensor.starts_with(p));
        match tensor {
            _ if layer.is_some_and(|n| n >= layers) => Part::Draft,
            _ if tensor.contains("_exps.") => Part::Experts,
            _ if starts(&["token_embd."]) => Part::Embedding,
            _ if starts(&["per_layer_token_embd."]) => Part::Ngram,
            _ if starts(&["output"]) => Part::Head,
            _ if starts(&["v.", "mm.", "mmproj."]) => Part::Vision,
            _ => Part::Dense,
        }
    }
}

/// Layers of the text model itself, from the metadata alone: the file may be of a family that cannot be run.
fn trunk_layers(metadata: &Metadata) -> u64 {
    let number = |key: &str| metadata.opt_u64(key).ok().flatten();
    let Ok(Some(architecture)) = metadata.opt_str("general.architecture") else { return u64::MAX };
    let Some(blocks) = number(&format!("{architecture}.block_count")) else { return u64::MAX };
    blocks.saturating_sub(number(&format!("{architecture}.nextn_predict_layers")).unwrap_or(0))
}

pub fn inspect(args: &InspectArgs) -> Result<(), CliError> {
    let path = args.file.as_ref().or(args.model.as_ref());
    let files = open_files(&ModelArgs { model: path.cloned() })?;
    let model = Model::open(&files);
    let mut out = Output::new();
    if args.program {
        let model = model.map_err(|source| CliError::Model { file: files.name(), source })?;
        return print_program(&mut out, &files, &model);
    }
    let model = match &model {
        Ok(model) => Ok(model),
        Err(error) => Err(error.to_string()),
    };
    if args.json {
        return out.json(&JsonModel::new(&files, &model, args.tensors));
    }
    print_head(&mut out, &files, &model)?;
    print_metadata(&mut out, files.metadata())?;
    print_totals(&mut out, &files)?;
    if args.tensors {
        print_tensors(&mut out, &files)?;
    }
    out.flush()
}

fn print_head(out: &mut Output, files: &ModelFiles, model: &Result<&Model, String>) -> Result<(), CliError> {
    for file in files.files() {
        let trailing = match file.trailing_bytes {
            0 => String::new(),
            bytes => format!(", {bytes} bytes after the last tensor belong to nothing"),
        };
        out.line(format!(
            "{}  GGUF v{}, {}, {} tensors{trailing}",
            file.path.display(),
            file.version,
            HumanBytes(file.bytes),
            file.tensor_count
        ))?;
    }
    match model {
        Ok(model) => {
            let dims = model.dims();
            out.line(format!(
                "{} ({}): {} layers, width {}, vocabulary {}, trained for {} tokens",
                printable(&model.name),
                printable(&model.architecture),
                dims.layers,
                dims.width,
                dims.vocab,
                dims.context
            ))?;
            for extra in &model.extras {
                let Extra { what, tensors, bytes } = extra;
                out.line(format!("present, not used for text: {what} ({tensors} tensors, {})", HumanBytes(*bytes)))?;
            }
            model.warnings.iter().try_for_each(|w| out.line(format!("warning: {}", printable(w))))
        }
        Err(error) => out.line(format!("cannot be run: {}", printable(error))),
    }
}

fn print_metadata(out: &mut Output, metadata: &Metadata) -> Result<(), CliError> {
    out.line(format!("\nMetadata ({} keys)", metadata.len()))?;
    let width = metadata.iter().map(|(key, _)| key.chars().count()).max().unwrap_or(0).min(56);
    for (key, value) in metadata.iter() {
        out.line(format!("  {:<width$}  {}", printable(key), printable(&value.to_string())))?;
    }
    Ok(())
}

fn print_totals(out: &mut Output, files: &ModelFiles) -> Result<(), CliError> {
    let layers = trunk_layers(files.metadata());
    let by_part = files.totals_by(|t| Part::of(&t.name, layers));
    let by_format = files.totals_by(|t| t.format);
    let parts = by_part.iter().map(|(part, t)| (part.name().to_owned(), *t)).collect();
    let mut formats: Vec<_> = by_format.iter().map(|(format, t)| (format.name().to_owned(), *t)).collect();
    formats.sort_by_key(|(_, t)| std::cmp::Reverse(t.bytes));
    for (title, rows) in [("By part", parts), ("By quantisation", formats)] {
        print_table(out, title, &rows)?;
    }
    Ok(())
}

fn print_table(out: &mut Output, title: &str, rows: &[(String, Totals)]) -> Result<(), CliError> {
    let head = [title, "tensors", "weights", "bytes", "bits/weight", "share"].map(str::to_owned).to_vec();
    let all: u64 = rows.iter().map(|(_, t)| t.bytes).sum();
    let cells = |(name, t): &(String, Totals)| {
        vec![
            name.clone(),
            t.tensors.to_string(),
            count(t.elements),
            HumanBytes(t.bytes).to_string(),
            format!("{:.2}", 8.0 * t.bytes as f64 / (t.elements as f64).max(1.0)),
            format!("{:.1} %", 100.0 * t.bytes as f64 / (all as f64).max(1.0)),
        ]
    };
    let sum = rows.iter().fold(Totals::default(), |a, (_, t)| Totals {
        tensors: a.tensors + t.tensors,
        elements: a.elements.saturating_add(t.elements),
        bytes: a.bytes.saturating_add(t.bytes),
    });
    let table: Vec<_> = [head].into_iter().chain(rows.iter().map(cells)).chain([cells(&("together".to_owned(), sum))]).collect();
    out.line("")?;
    columns(&table).iter().try_for_each(|line| out.line(line))
}

/// A large number of weights: `19.6 M`.
fn count(elements: u64) -> String {
    match elements as f64 {
        n if n >= 1e9 => format!("{:.2} B", n / 1e9),
        n if n >= 1e6 => format!("{:.2} M", n / 1e6),
        _ => elements.to_string(),
    }
}

fn print_tensors(out: &mut Output, files: &ModelFiles) -> Result<(), CliError> {
    let several = files.files().len() > 1;
    let head = ["Tensor", "shape", "type", "bytes", "at"].map(str::to_owned).to_vec();
    let cells = |t: &TensorInfo| {
        let at = if several { format!("{}:{}", t.shard + 1, t.offset) } else { t.offset.to_string() };
        let shape = t.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(" x ");
        vec![printable(&t.name).into_owned(), shape, t.format.name().to_owned(), t.bytes.to_string(), at]
    };
    let table: Vec<_> = [head].into_iter().chain(files.tensors().iter().map(cells)).collect();
    out.line("")?;
    columns(&table).iter().try_for_each(|line| out.line(line))
}

fn print_program(out: &mut Output, files: &ModelFiles, model: &Model) -> Result<(), CliError> {
    let dims = model.dims();
    let options = OpenOptions { context: dims.context.min(4096), ..OpenOptions::default() };
    let stage = model.config.stage(&Tensors::new(files), &options.stage_options(0..dims.layers));
    let stage = stage.map_err(|source| CliError::Model { file: files.name(), source })?;
    out.write(&stage.to_string())?;
    out.flush()
}

#[derive(Debug, Serialize)]
struct JsonTotals {
    tensors: u64,
    weights: u64,
    bytes: u64,
}

impl From<&Totals> for JsonTotals {
    fn from(t: &Totals) -> JsonTotals {
        JsonTotals { tensors: t.tensors, weights: t.elements, bytes: t.bytes }
    }
}

#[derive(Debug, Serialize)]
struct JsonFile {
    path: String,
    bytes: u64,
    version: u32,
    tensors: usize,
}

#[derive(Debug, Serialize)]
struct JsonTensor<'a> {
    name: &'a str,
    shape: &'a [u64],
    format: &'static str,
    part: &'static str,
    bytes: u64,
    file: usize,
    offset: u64,
}

#[derive(Debug, Serialize)]
struct JsonModel<'a> {
    files: Vec<JsonFile>,
    /// Why the model cannot be run, if so.
    problem: Option<&'a str>,
    layers: Option<u32>,
    vocabulary: Option<u32>,
    context: Option<u32>,
    not_used: Vec<(&'static str, u64)>,
    warnings: &'a [String],
    by_part: serde_json::Map<String, serde_json::Value>,
    by_format: serde_json::Map<String, serde_json::Value>,
    metadata: &'a Metadata,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensors: Option<Vec<JsonTensor<'a>>>,
}

impl<'a> JsonModel<'a> {
    fn new(files: &'a ModelFiles, model: &'a Result<&'a Model, String>, tensors: bool) -> JsonModel<'a> {
        let layers = trunk_layers(files.metadata());
        let object = |rows: Vec<(&'static str, Totals)>| {
            let entry = |(name, t): &(&str, Totals)| ((*name).to_owned(), serde_json::json!(JsonTotals::from(t)));
            rows.iter().map(entry).collect()
        };
        let tensor = |t: &'a TensorInfo| JsonTensor {
            name: &t.name,
            shape: &t.shape,
            format: t.format.name(),
            part: Part::of(&t.name, layers).name(),
            bytes: t.bytes,
            file: t.shard,
            offset: t.offset,
        };
        let file = |f: &crate::gguf::ModelFile| JsonFile {
            path: f.path.display().to_string(),
            bytes: f.bytes,
            version: f.version,
            tensors: f.tensor_count,
        };
        let dims = model.as_ref().ok().map(|m| m.dims());
        JsonModel {
            files: files.files().iter().map(file).collect(),
            problem: model.as_ref().err().map(String::as_str),
            layers: dims.map(|d| d.layers),
            vocabulary: dims.map(|d| d.vocab),
            context: dims.map(|d| d.context),
            not_used: model.as_ref().map(|m| m.extras.iter().map(|e| (e.what, e.bytes)).collect()).unwrap_or_default(),
            warnings: model.as_ref().map(|m| m.warnings.as_slice()).unwrap_or_default(),
            by_part: object(files.totals_by(|t| Part::of(&t.name, layers)).into_iter().map(|(p, t)| (p.name(), t)).collect()),
            by_format: object(files.totals_by(|t| t.format).into_iter().map(|(f, t)| (f.name(), t)).collect()),
            metadata: files.metadata(),
            tensors: tensors.then(|| files.tensors().iter().map(tensor).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_sorted_into_parts() {
        let cases = [
            ("blk.3.ffn_gate_exps.weight", Part::Experts),
            ("blk.3.ffn_gate_shexp.weight", Part::Dense),
            ("blk.8.ffn_up_exps.weight", Part::Draft),
            ("token_embd.weight", Part::Embedding),
            ("per_layer_token_embd.weight", Part::Ngram),
            ("output_norm.weight", Part::Head),
            ("v.blk.0.attn_q.weight", Part::Vision),
            ("rope_freqs.weight", Part::Dense),
        ];
        for (name, part) in cases {
            assert_eq!(Part::of(name, 8), part, "{name}");
        }
    }
}
