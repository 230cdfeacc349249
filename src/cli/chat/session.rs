//! The conversation: its messages, and the sequence in the engine that has read them.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::ChatArgs;
use super::commands::Command;
use super::settings::Settings;
use crate::cli::answer::{Answer, Show, generate_error};
use crate::cli::error::CliError;
use crate::cli::interrupt::Interrupt;
use crate::cli::open::Loaded;
use crate::cli::output::note;
use crate::cli::pictures::{prepare, read_picture, show};
use crate::cli::read::{MOST_TEXT_BYTES, read_file};
use crate::cli::report::Report;
use crate::cli::text::{self, Chat, message};
use crate::engine::{Finish, GenerateOptions, Generation, GenerationStats};
use crate::picture::{Patches, Pixels};
use crate::state::Sequence;
use crate::tokenizer::Tokenizer;
use crate::tokenizer::content::words;

pub struct Session<'a> {
    tokenizer: &'a Tokenizer,
    chat: &'a Chat,
    loaded: Loaded,
    sequence: Sequence,
    interrupt: Interrupt,
    settings: Settings,
    thinking: Option<bool>,
    system: Option<String>,
    /// Questions and answers in turn, without the system message.
    messages: Vec<Json>,
    /// All that were shown, by the numbers that messages give.
    pictures: Vec<Arc<Patches>>,
    /// Numbers of those that go with the next question.
    attached: Vec<usize>,
    last: Option<GenerationStats>,
}

impl<'a> Session<'a> {
    pub fn new(
        tokenizer: &'a Tokenizer,
        chat: &'a Chat,
        mut loaded: Loaded,
        interrupt: &Interrupt,
        args: &ChatArgs,
    ) -> Result<Session<'a>, CliError> {
        let settings = Settings {
            sampling: args.sampling.params(),
            max_tokens: args.sampling.max_tokens(),
            ignore_eos: args.sampling.ignore_eos,
            stop: args.sampling.reverse_prompt.iter().cloned().chain(chat.stops()).collect(),
        };
        Ok(Session {
            tokenizer,
            chat,
            sequence: loaded.engine.start()?,
            loaded,
            interrupt: interrupt.clone(),
            settings,
            thinking: args.template.thinking(),
            system: args.template.system.clone(),
            messages: Vec::new(),
            pictures: Vec::new(),
            attached: Vec::new(),
            last: None,
        })
    }

    /// Asks and shows the answer. A question that could not be answered is forgotten.
    pub fn ask(&mut self, question: &str) -> Result<(), CliError> {
        let question = question.strip_prefix("//").map_or_else(|| question.to_owned(), |rest| format!("/{rest}"));
        self.messages.push(text::question(std::mem::take(&mut self.attached), &question));
        self.answer()
    }

    /// Shows the model a picture with the next question.
    pub fn attach(&mut self, pixels: &Pixels) -> Result<(), CliError> {
        let patches = prepare(&self.loaded.engine, pixels)?;
        note(format!("(a picture of {} tokens goes with the next question)", patches.tokens()));
        self.attached.push(self.pictures.len());
        self.pictures.push(patches);
        Ok(())
    }

    /// A new conversation.
    fn clear(&mut self) {
        self.messages.clear();
        self.pictures.clear();
        self.attached.clear();
        note("(a new conversation)");
    }

    fn answer(&mut self) -> Result<(), CliError> {
        let result = self.generate();
        if !matches!(result, Ok(true)) {
            self.messages.pop();
        }
        result.map(|_| ())
    }

    /// Answers the last message; false if nothing was said.
    fn generate(&mut self) -> Result<bool, CliError> {
        let all = self.all_messages();
        let mut prompt = self.chat.prompt(self.tokenizer, &all, self.thinking)?;
        prompt.place(self.tokenizer, &self.pictures)?;
        let context = self.loaded.engine.options().context as usize;
        if prompt.tokens.len() >= context {
            return Err(CliError::Failed(format!(
                "the conversation has {} tokens and the context holds {context}; /clear begins a new one, /undo shortens it, \
                 a larger --ctx-size holds more",
                prompt.tokens.len()
            )));
        }
        let mut history = self.chat.history(self.tokenizer, &all, self.thinking)?;
        history.place(self.tokenizer, &self.pictures)?;
        let history = history.tokens.iter().zip(&prompt.tokens).take_while(|(a, b)| a == b).count();
        let options = GenerateOptions {
            max_tokens: self.settings.max_tokens,
            stop: self.settings.stop.clone(),
            ignore_eos: self.settings.ignore_eos,
            checkpoints: vec![history],
            max_checkpoints: super::CHECKPOINTS as usize,
            interrupt: self.interrupt.flag(),
            ..GenerateOptions::default()
        };
        let engine = &mut self.loaded.engine;
        let sampling = self.settings.sampling.clone();
        let mut answer = Answer::new(&prompt.form, Show::Stream);
        let mut generation =
            Generation::new(self.tokenizer, engine.dims(), sampling, prompt.tokens.clone(), options).map_err(generate_error)?;
        show(&mut generation, engine, &prompt)?;
        generation.rewind(engine, &mut self.sequence)?;
        let finish = answer.generate(&mut generation, engine, &mut self.sequence)?;
        self.last = Some(generation.stats());
        match finish {
            Finish::Interrupted => note("(stopped)"),
            Finish::ContextFull => note("(the context is full: /clear begins a new conversation)"),
            Finish::MaxTokens => note("(cut off by --predict)"),
            Finish::EndToken(_) | Finish::StopText(_) => {}
        }
        let said = !answer.text.is_empty() || !answer.thinking.is_empty();
        if said {
            let mut reply = message("assistant", &answer.text);
            if !answer.thinking.is_empty() {
                reply["reasoning_content"] = json!(answer.thinking);
            }
            self.messages.push(reply);
        }
        Ok(said)
    }

    fn all_messages(&self) -> Vec<Json> {
        let system = self.system.as_ref().map(|text| message("system", text));
        system.into_iter().chain(self.messages.iter().cloned()).collect()
    }

    /// Any command but those that need no conversation.
    pub fn command(&mut self, command: Command) -> Result<(), CliError> {
        match command {
            Command::Help | Command::Quit => {}
            Command::Clear => self.clear(),
            Command::System(None) => note(self.system.as_deref().unwrap_or("(nothing is said to the model beforehand)")),
            Command::System(Some(text)) => {
                self.system = Some(text);
                self.clear();
            }
            Command::Undo => match self.take_back() {
                Some(question) => note(format!("(taken back: {})", words(&question["content"]))),
                None => note("(there is nothing to take back)"),
            },
            Command::Regenerate => match self.take_back() {
                Some(question) => {
                    self.messages.push(question);
                    return self.answer();
                }
                None => note("(nothing was asked yet)"),
            },
            Command::Stats => self.show_stats(),
            Command::Think(thinking) => {
                self.thinking = thinking;
                if !self.chat.can_think() {
                    note("(the model's template knows no such switch)");
                }
            }
            Command::Set(None) => note(self.settings.list()),
            Command::Set(Some((name, value))) => {
                let vocab = self.loaded.engine.dims().vocab as usize;
                self.settings.set(&name, &value, vocab).map_err(CliError::Usage)?;
            }
            Command::Save(path) => self.save(&path)?,
            Command::Load(path) => self.load(&path)?,
            Command::Picture(path) => self.attach(&read_picture(&path)?)?,
        }
        Ok(())
    }

    /// Removes the last question and what came after it; returns the question.
    fn take_back(&mut self) -> Option<Json> {
        let at = self.messages.iter().rposition(|m| m["role"] == "user")?;
        self.messages.drain(at..).next()
    }

    fn show_stats(&mut self) {
        let Some(stats) = self.last else {
            note("(nothing was answered yet)");
            return;
        };
        note(Report::new(&self.loaded, &stats).line());
        let (held, room) = (self.sequence.len(), self.loaded.engine.options().context);
        note(format!("{held} of {room} tokens held, {} messages", self.messages.len()));
    }

    fn save(&self, path: &Path) -> Result<(), CliError> {
        let mut messages = self.all_messages();
        messages.iter_mut().for_each(|message| message["content"] = json!(words(&message["content"])));
        let document = json!({ "messages": messages });
        let fail = |e| CliError::io("write", path, e);
        let text = serde_json::to_string_pretty(&document).map_err(|e| fail(e.into()))?;
        std::fs::write(path, text + "\n").map_err(fail)?;
        let pictures = if self.pictures.is_empty() { "" } else { ", without the pictures" };
        note(format!("({} messages in '{}'{pictures})", self.messages.len(), path.display()));
        Ok(())
    }

    fn load(&mut self, path: &Path) -> Result<(), CliError> {
        let text = read_file(path, MOST_TEXT_BYTES)?;
        let wrong = |problem: &str| CliError::in_file(&path.display().to_string(), problem);
        let document: Json = serde_json::from_str(&text).map_err(|e| wrong(&format!("it is not JSON: {e}")))?;
        let messages = document["messages"].as_array().ok_or_else(|| wrong("it holds no list 'messages'"))?;
        let is_text = |m: &Json| m["role"].is_string() && m["content"].is_string();
        if !messages.iter().all(is_text) {
            return Err(wrong("a message needs a 'role' and a 'content', both text"));
        }
        let (system, rest): (Vec<&Json>, Vec<&Json>) = messages.iter().partition(|m| m["role"] == "system");
        self.system = system.first().and_then(|m| m["content"].as_str()).map(str::to_owned);
        self.messages = rest.into_iter().cloned().collect();
        (self.pictures, self.attached) = (Vec::new(), Vec::new());
        note(format!("({} messages from '{}')", self.messages.len(), path.display()));
        Ok(())
    }
}
