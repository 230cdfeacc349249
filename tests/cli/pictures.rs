//! Pictures on the command line. The encoder's weights are random, so the model sees something, and nobody knows what.

use crate::rig::{Ran, fixture, path, strata, strata_with_input};

fn eye() -> String {
    path(&fixture("vision/tiny-vision.gguf")).to_owned()
}

fn photo(name: &str) -> String {
    path(&fixture("pictures").join(name)).to_owned()
}

fn run(more: &[&str]) -> Ran {
    let eye = eye();
    strata(&[&["run", "--temp", "0", "-n", "8", "--json", "--vision-file", &eye], more].concat())
}

fn prompt_tokens(ran: Ran) -> u64 {
    let answer = ran.json();
    answer["report"]["prompt_tokens"].as_u64().unwrap_or_else(|| panic!("prompt tokens: {answer}"))
}

#[test]
fn a_prompt_may_begin_with_pictures() {
    // 93 x 61 pixels are 3 x 2 tokens, which is less than the encoder wants: scaled up to 4 x 3. 40 x 30 become 4 x 3 as well.
    let (a, b) = (photo("photo.png"), photo("turned3.jpg"));
    let without = prompt_tokens(run(&["What is this?"]));
    let one = prompt_tokens(run(&["--picture", &a, "What is this?"]));
    let two = prompt_tokens(run(&["--picture", &a, "--picture", &b, "What is this?"]));
    assert_eq!((one - without, two - one), (14, 14), "twelve tokens, with the two around them");
    let shown = strata(&["run", "-n", "1", "--verbose-prompt", "--vision-file", &eye(), "--picture", &a, "What is this?"]).ok();
    assert!(shown.err.contains("<|vision_start|><|image_pad|><|vision_end|>What is this?"), "{}", shown.err);
}

#[test]
fn a_conversation_may_show_pictures() {
    let (eye, a, b) = (eye(), photo("photo.png"), photo("photo.jpg"));
    let input = format!("What is this?\n/picture {b}\nAnd this?\n/undo\n/regen\n/clear\nHello\n");
    let args = ["chat", "--temp", "0", "-n", "4", "--vision-file", &eye, "--picture", &a];
    let ran = strata_with_input(&args, &input).ok();
    assert_eq!(ran.err.matches("a picture of 12 tokens goes with the next question").count(), 2, "{}", ran.err);
    assert!(ran.err.contains("(taken back: And this?)"), "{}", ran.err);
    assert_eq!(ran.out.lines().count(), 4, "{}", ran.out);
}

#[test]
fn what_cannot_be_seen_is_told_before_anything_is_loaded() {
    let a = photo("photo.png");
    strata(&["run", "--picture", &a, "What is this?"]).fails(2, &["--picture", "--vision-file"]);
    strata(&["chat", "--picture", &a]).fails(2, &["--picture", "--vision-file"]);
    strata_with_input(&["chat"], &format!("/picture {a}\n")).fails(2, &["--vision-file"]);
    run(&["--picture", "/no/such/cat.png", "What?"]).fails(1, &["/no/such/cat.png"]);
    let text = path(&fixture("README.md")).to_owned();
    run(&["--picture", &text, "What?"]).fails(1, &["README.md", "PNG, JPEG, WebP and GIF"]);
    run(&["--raw", "--picture", &a, "What?"]).fails(2, &["--raw"]);
    run(&["-c", "16", "--picture", &a, "Hi"]).fails(2, &["--ctx-size"]);
}
