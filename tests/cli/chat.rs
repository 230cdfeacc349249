//! `strata chat` with lines from a pipe.

use crate::rig::strata_with_input;

#[test]
fn every_line_is_a_turn() {
    let input = "What is the capital of France?\nWhat is the capital of Spain?\n/stats\n/quit\nnever read\n";
    let ran = strata_with_input(&["chat", "--temp", "0"], input).ok();
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines[0], "The capital of France is Paris.");
    assert!(lines[1].contains("Madrid"), "{}", ran.out);
    assert_eq!(lines.len(), 2);
    assert!(ran.err.contains("kept)"), "the second turn reads only what is new: {}", ran.err);
    assert!(ran.err.contains("4 messages"), "{}", ran.err);
}

#[test]
fn questions_can_be_asked_again_and_taken_back() {
    let input = "What is the capital of France?\n/regen\n/undo\n/stats\n/undo\n";
    let ran = strata_with_input(&["chat", "--temp", "0"], input).ok();
    assert_eq!(ran.out, "The capital of France is Paris.\n".repeat(2));
    assert!(ran.err.contains("(taken back: What is the capital of France?)"), "{}", ran.err);
    assert!(ran.err.contains("0 messages") && ran.err.contains("nothing to take back"), "{}", ran.err);
}

/// What a turn says must not depend on what was kept of the turns before.
#[test]
fn a_kept_conversation_answers_like_one_read_anew() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("talk.json");
    let save = format!("/save {}\n", file.display());
    let first = "What is the capital of France?\nWhat is 12 + 5?\n";
    strata_with_input(&["chat", "--temp", "0"], &format!("{first}{save}")).ok();
    let last = "How do you say \"thank you\" in German?\n";
    let kept = strata_with_input(&["chat", "--temp", "0"], &format!("{first}{last}")).ok();
    let anew = strata_with_input(&["chat", "--temp", "0"], &format!("/load {}\n{last}", file.display())).ok();
    assert_eq!(kept.out.lines().last(), anew.out.lines().last());
    assert!(anew.err.contains("(4 messages from"), "{}", anew.err);
}

#[test]
fn settings_and_thinking_can_be_changed() {
    let input = "/set predict 2\n/set\nWhat is 47 + 38?\n/set predict -1\n/clear\n/think on\nWhat is 47 + 38?\n";
    let ran = strata_with_input(&["chat", "--temp", "0"], input).ok();
    assert!(ran.err.contains("(cut off by --predict)") && ran.err.contains("Carry 1"), "{}", ran.err);
    assert!(ran.out.ends_with("47 + 38 = 85.\n"), "{}", ran.out);
}

#[test]
fn messages_of_several_lines_and_slashes_are_text() {
    let input = "What is the capital \\\nof France?\n//help\n/system\n/help\n";
    let ran = strata_with_input(&["chat", "--temp", "0", "-n", "20"], input).ok();
    assert_eq!(ran.out.lines().count(), 2, "{}", ran.out);
    assert!(ran.err.contains("nothing is said") && ran.err.contains("/regen"), "{}", ran.err);
}

#[test]
fn a_script_learns_of_errors() {
    strata_with_input(&["chat"], "/nonsense\n").fails(2, &["/nonsense", "/help"]);
    strata_with_input(&["chat"], "/load /no/such/file\n").fails(1, &["/no/such/file"]);
    strata_with_input(&["chat"], "/save\n").fails(2, &["name of a file"]);
    strata_with_input(&["chat"], "/set temp hot\n").fails(2, &["hot"]);
    strata_with_input(&["chat", "-c", "16"], "What is the capital of France?\n").fails(1, &["/clear", "--ctx-size"]);
}

/// The first signal must do: a second one ends any verb.
#[test]
#[cfg(unix)]
fn an_interruption_ends_a_chat_that_waits_for_input() {
    use std::io::Write;
    let mut child = crate::rig::command(&["chat", "--temp", "0", "-n", "4"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(b"Hello\n").unwrap();
    crate::rig::first_byte(&mut child);
    // Far longer than the rest of the answer takes.
    std::thread::sleep(std::time::Duration::from_secs(3));
    crate::rig::interrupt(&child);
    let ended = (0..100).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        child.try_wait().unwrap()
    });
    let _ = child.kill();
    assert_eq!(ended.and_then(|status| status.code()), Some(130));
}
