//! `strata tokenize`: text to tokens and back.

use clap::Args;
use serde::Serialize;

use super::args::{ModelArgs, TemplateArgs};
use super::error::CliError;
use super::open::open_files;
use super::output::Output;
use super::read::read_stdin;
use super::text::{Chat, first_messages, open_tokenizer};
use super::tokens::parse_tokens;
use crate::tokenizer::{ShowSpecial, Special, Tokenizer};
use crate::units::TokenId;

const EXAMPLES: &str = "\
Examples:
  strata tokenize -m model.gguf \"Hello world\"
  strata tokenize -m model.gguf --special \"<|im_start|>user\"
  strata tokenize -m model.gguf --chat \"Hello\"       as the chat template writes it
  strata tokenize -m model.gguf --ids 9906,1917       back to text";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TokenizeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The text; '-' or nothing reads it from standard input
    #[arg(value_name = "TEXT", conflicts_with = "ids")]
    text: Option<String>,
    /// Show the text of these tokens instead
    #[arg(long, value_name = "1,2,3")]
    ids: Option<String>,
    /// Read special tokens in the text as such
    #[arg(long, conflicts_with = "ids")]
    special: bool,
    /// Put the text into the model's chat template first
    #[arg(long, conflicts_with_all = ["ids", "special"])]
    chat: bool,
    #[command(flatten)]
    template: TemplateArgs,
    /// JSON instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Piece<'a> {
    id: u32,
    piece: std::borrow::Cow<'a, str>,
    special: bool,
}

#[derive(Debug, Serialize)]
struct JsonTokens<'a> {
    text: &'a str,
    tokens: Vec<Piece<'a>>,
}

pub fn tokenize(args: &TokenizeArgs) -> Result<(), CliError> {
    let files = open_files(&args.model)?;
    let tokenizer = open_tokenizer(&files)?;
    let failed = |e: crate::tokenizer::TokenizerError| CliError::Failed(e.to_string());
    let mut out = Output::new();
    if let Some(ids) = &args.ids {
        let ids = parse_tokens("--ids", ids)?;
        let vocab = tokenizer.vocab_len();
        if let Some(id) = ids.iter().find(|id| id.index() >= vocab) {
            return Err(CliError::Usage(format!("--ids: token {id} is not in the vocabulary of {vocab} tokens")));
        }
        let text = tokenizer.decode(&ids, ShowSpecial::Yes).map_err(failed)?;
        match args.json {
            true => out.json(&JsonTokens { text: &text, tokens: pieces(&tokenizer, &ids) })?,
            false => out.line(&text)?,
        }
        return out.flush();
    }
    let text = read_text(args)?;
    let (text, ids) = if args.chat {
        let chat = Chat::open(&files, &tokenizer)?;
        let prompt = chat.prompt(&tokenizer, &first_messages(&args.template, 0, &text), args.template.thinking())?;
        (prompt.text, prompt.tokens)
    } else {
        let special = if args.special { Special::Parse } else { Special::AsText };
        let ids = tokenizer.encode(&text, special).map_err(failed)?;
        (text, ids)
    };
    if args.json {
        out.json(&JsonTokens { text: &text, tokens: pieces(&tokenizer, &ids) })?;
    } else {
        for piece in pieces(&tokenizer, &ids) {
            out.line(format!("{:>7}  {:?}", piece.id, piece.piece))?;
        }
    }
    out.flush()
}

fn pieces<'a>(tokenizer: &'a Tokenizer, ids: &[TokenId]) -> Vec<Piece<'a>> {
    let piece = |id: &TokenId| Piece {
        id: id.0,
        piece: tokenizer.token_text(*id).unwrap_or_default(),
        special: tokenizer.is_special(*id),
    };
    ids.iter().map(piece).collect()
}

/// The text exactly as given: here a line end counts.
fn read_text(args: &TokenizeArgs) -> Result<String, CliError> {
    if let Some(text) = args.text.as_deref().filter(|text| *text != "-") {
        return Ok(text.to_owned());
    }
    read_stdin()
}
