//! The commands of a conversation: one table of names, arguments and what they do.

use std::path::PathBuf;

/// What a user may ask for besides an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Help,
    Clear,
    /// `None` shows the present one.
    System(Option<String>),
    Save(PathBuf),
    Load(PathBuf),
    /// Goes with the next question.
    Picture(PathBuf),
    Undo,
    Regenerate,
    Stats,
    /// `None` leaves it to the model's template.
    Think(Option<bool>),
    /// `None` lists all settings.
    Set(Option<(String, String)>),
    Quit,
}

type Parse = fn(&str) -> Result<Command, String>;

/// Names (the first is shown), arguments, meaning, and how the rest of the line is read.
const COMMANDS: &[(&[&str], &str, &str, Parse)] = &[
    (&["help", "?"], "", "this list", |rest| none(rest, Command::Help)),
    (&["clear", "new"], "", "begin a new conversation", |rest| none(rest, Command::Clear)),
    (&["system"], "[TEXT]", "show or set what the model is told beforehand; begins a new conversation", |rest| {
        Ok(Command::System((!rest.is_empty()).then(|| rest.to_owned())))
    }),
    (&["undo"], "", "take the last question and its answer back", |rest| none(rest, Command::Undo)),
    (&["regen", "retry"], "", "answer the last question again", |rest| none(rest, Command::Regenerate)),
    (&["think"], "on|off|auto", "let the model think before it answers", think),
    (&["set"], "[NAME VALUE]", "list or change settings such as temp and top-k", set),
    (&["picture", "image"], "FILE", "show the model a picture with the next question", |rest| Ok(Command::Picture(file(rest)?))),
    (&["stats"], "", "speed and memory of the last answer", |rest| none(rest, Command::Stats)),
    (&["save"], "FILE", "write the conversation to a JSON file", |rest| Ok(Command::Save(file(rest)?))),
    (&["load"], "FILE", "go on with a conversation that was saved", |rest| Ok(Command::Load(file(rest)?))),
    (&["quit", "exit", "q"], "", "end (as ctrl-D does)", |rest| none(rest, Command::Quit)),
];

fn none(rest: &str, command: Command) -> Result<Command, String> {
    if rest.is_empty() { Ok(command) } else { Err("this command takes nothing after its name".into()) }
}

fn file(rest: &str) -> Result<PathBuf, String> {
    if rest.is_empty() { Err("the name of a file is missing".into()) } else { Ok(rest.into()) }
}

fn think(rest: &str) -> Result<Command, String> {
    match rest {
        "on" => Ok(Command::Think(Some(true))),
        "off" => Ok(Command::Think(Some(false))),
        "auto" => Ok(Command::Think(None)),
        _ => Err("say /think on, /think off or /think auto".into()),
    }
}

fn set(rest: &str) -> Result<Command, String> {
    match rest.split_once(char::is_whitespace) {
        Some((name, value)) => Ok(Command::Set(Some((name.to_owned(), value.trim().to_owned())))),
        None if rest.is_empty() => Ok(Command::Set(None)),
        None => Err("say /set NAME VALUE, or /set alone for the list".into()),
    }
}

impl Command {
    /// `None` if the line is not a command. A line that begins with two slashes never is.
    pub fn parse(line: &str) -> Option<Result<Command, String>> {
        let text = line.trim().strip_prefix('/').filter(|text| !text.starts_with('/'))?;
        let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let found = COMMANDS.iter().find(|(names, ..)| names.contains(&name));
        Some(match found {
            Some((.., parse)) => parse(rest.trim()).map_err(|problem| format!("/{name}: {problem}")),
            None => Err(format!("there is no command /{name}; /help lists them")),
        })
    }
}

/// The commands that begin with what was typed, for completion.
pub fn beginning_with(typed: &str) -> Vec<String> {
    let names = COMMANDS.iter().filter_map(|(names, ..)| names.first());
    names.map(|name| format!("/{name}")).filter(|name| name.starts_with(typed)).collect()
}

pub fn help() -> String {
    let line = |(names, arguments, meaning, _): &(&[&str], &str, &str, Parse)| {
        let name = names.first().copied().unwrap_or_default();
        format!("  {:<20} {meaning}", format!("/{name} {arguments}"))
    };
    let mut lines: Vec<String> = COMMANDS.iter().map(line).collect();
    lines.push("A line that ends in \\ goes on in the next; text between \"\"\" may have many lines.".into());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_text_are_told_apart() {
        assert_eq!(Command::parse("Hello /help"), None);
        assert_eq!(Command::parse("//not one"), None);
        assert_eq!(Command::parse(" /quit "), Some(Ok(Command::Quit)));
        assert_eq!(Command::parse("/q"), Some(Ok(Command::Quit)));
        assert_eq!(Command::parse("/system  Be brief. "), Some(Ok(Command::System(Some("Be brief.".into())))));
        assert_eq!(Command::parse("/set temp 0.5"), Some(Ok(Command::Set(Some(("temp".into(), "0.5".into()))))));
        assert!(matches!(Command::parse("/nonsense"), Some(Err(_))));
        assert!(matches!(Command::parse("/save"), Some(Err(_))));
        assert!(matches!(Command::parse("/clear now"), Some(Err(_))));
    }

    #[test]
    fn every_command_is_in_the_help() {
        assert!(COMMANDS.iter().all(|(names, ..)| help().contains(&format!("/{}", names[0]))));
        assert_eq!(beginning_with("/re"), ["/regen"]);
    }
}
