//! Plans and refusals for people.

use std::fmt::Write as _;

use super::planner::{Plan, PlannedStage};
use super::refusal::Refusal;
use super::rows::{Pool, PoolSheet, Row};
use super::size::{grouped, human};

/// The whole table.
pub fn render_report(plan: &Plan) -> String {
    let mut out = String::new();
    let s = &plan.settings;
    let _ = writeln!(out, "{} on {}: fits", plan.model, plan.machine);
    let draft = if s.draft { format!("on, {} tokens", s.draft_window) } else { "off".into() };
    let _ = writeln!(
        out,
        "context {} tokens, {} slot(s), KV {}, prompt chunk {}, draft {draft}, vision {}",
        grouped(s.context_tokens.into()),
        s.slots,
        s.kv.name(),
        grouped(s.chunk.into()),
        if s.vision { format!("on, {} tokens a picture at most", grouped(s.vision_tokens.into())) } else { "off".into() }
    );
    let _ = writeln!(out, "layers: {} ({})", plan.split_text(), plan.split_why);
    if plan.experts > 0 {
        let (held, all) = (grouped(plan.held_experts), grouped(plan.experts));
        let place = plan.place_of_experts();
        // Where they lie in RAM, there are no others to keep.
        let kept = if plan.held_experts == plan.experts && place == "in RAM" { "nothing else" } else { ram_text(plan) };
        let _ = writeln!(out, "experts: {held} of {all} {place}; RAM keeps {kept}");
    }
    for stage in &plan.stages {
        card_table(&mut out, plan, stage);
    }
    host_table(&mut out, plan);
    prediction(&mut out, plan);
    list(&mut out, "Notices", &plan.notices);
    let assumptions: Vec<String> = plan.assumptions.iter().map(|a| format!("{} = {} ({})", a.what, a.value, a.why)).collect();
    list(&mut out, "Assumed, because nobody has measured it", &assumptions);
    out
}

fn ram_text(plan: &Plan) -> &'static str {
    use super::limits::RamExperts;
    match plan.settings.ram_experts {
        RamExperts::All | RamExperts::Auto => "a copy of all",
        RamExperts::Complement => "the others",
        RamExperts::Disk => "what fits, the others stay on disk",
    }
}

fn card_table(out: &mut String, plan: &Plan, stage: &PlannedStage) {
    let pool = Pool::Card(stage.card);
    let Some(sheet) = plan.pools.iter().find(|p| p.pool == pool) else { return };
    let _ = writeln!(out, "\n{} - layers {}", sheet.name, stage.layers);
    rows(out, plan.rows.iter().filter(|r| r.pool == pool));
    totals(out, sheet);
    let _ = writeln!(out, "  {:<40} bound {}, gap {}", "packing by lifetimes", human(sheet.bound), human(sheet.gap));
}

fn host_table(out: &mut String, plan: &Plan) {
    for sheet in plan.pools.iter().filter(|p| !matches!(p.pool, Pool::Card(_))) {
        let _ = writeln!(out, "\n{} ({})", sheet.name, sheet.capacity_why);
        if sheet.pool == Pool::Ram {
            rows(out, plan.rows.iter().filter(|r| matches!(r.pool, Pool::Ram | Pool::Pinned)));
        } else {
            rows(out, plan.rows.iter().filter(|r| r.pool == sheet.pool));
        }
        totals(out, sheet);
    }
    let disk: Vec<&Row> = plan.rows.iter().filter(|r| r.pool == Pool::Disk).collect();
    if !disk.is_empty() {
        let _ = writeln!(out, "\ndisk");
        rows(out, disk.into_iter());
    }
}

fn rows<'a>(out: &mut String, rows: impl Iterator<Item = &'a Row>) {
    for row in rows {
        let pinned = if row.pool == Pool::Pinned { " (pinned)" } else { "" };
        let name = format!("{}{pinned}", row.consumer.text());
        let _ = writeln!(out, "  {name:<40} {:>12}  {:<7} {}", human(row.bytes), row.lifetime.name(), row.formula);
    }
}

fn totals(out: &mut String, sheet: &PoolSheet) {
    let _ = writeln!(out, "  {:<40} {:>12}  of {}", "used", human(sheet.used), human(sheet.capacity));
    let _ = writeln!(out, "  {:<40} {:>12}  {}", "floor", human(sheet.floor), sheet.floor_why);
    let _ = writeln!(out, "  {:<40} {:>12}", "free", human(sheet.free));
}

fn prediction(out: &mut String, plan: &Plan) {
    let p = &plan.predicted;
    let _ = writeln!(
        out,
        "\nPredicted: {} tokens/s decode, {} tokens/s prompt, {:.0} s to load",
        speed(p.decode_tokens_per_s),
        speed(p.prompt_tokens_per_s),
        p.load_s
    );
    for term in &p.terms {
        let _ = writeln!(out, "  {term}");
    }
    if plan.alternatives.is_empty() {
        return;
    }
    let _ = writeln!(out, "Other splits that were considered (this one: {:.1} s for a prompt and an answer)", p.objective_s);
    for a in &plan.alternatives {
        let _ = writeln!(
            out,
            "  {:.1} s: {}, chunk {}, {} experts held, {} decode, {} prompt",
            a.objective_s,
            a.split,
            a.chunk,
            grouped(a.held_experts),
            speed(a.decode_tokens_per_s),
            speed(a.prompt_tokens_per_s)
        );
    }
}

fn speed(tokens_per_s: f64) -> String {
    if tokens_per_s < 10.0 { format!("{tokens_per_s:.1}") } else { format!("{tokens_per_s:.0}") }
}

fn list(out: &mut String, title: &str, items: &[String]) {
    if items.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{title}");
    for item in items {
        let _ = writeln!(out, "  {item}");
    }
}

/// One line a card and one for the host: what `run`, `chat` and `bench` print.
pub fn render_short(plan: &Plan) -> String {
    let mut out = String::new();
    for stage in &plan.stages {
        let Some(sheet) = plan.pools.iter().find(|p| p.pool == Pool::Card(stage.card)) else { continue };
        let held: u64 = stage.held.iter().map(|n| u64::from(*n)).sum();
        let experts = if plan.experts > 0 { format!(", {} experts", grouped(held)) } else { String::new() };
        let _ = writeln!(
            out,
            "plan: {}: layers {}{experts}, {} used, {} free",
            stage.card_id,
            stage.layers,
            human(sheet.used),
            human(sheet.free)
        );
    }
    if let Some(ram) = plan.pools.iter().find(|p| p.pool == Pool::Ram) {
        let p = &plan.predicted;
        let _ = writeln!(
            out,
            "plan: host: {} used, {} free; predicted {} tokens/s decode, {} prompt",
            human(ram.used),
            human(ram.free),
            speed(p.decode_tokens_per_s),
            speed(p.prompt_tokens_per_s)
        );
    }
    out
}

/// How a row's number came about; `None` if there is no such row.
pub fn why(plan: &Plan, id: &str) -> Option<String> {
    let row = plan.row(id)?;
    let mut out = format!("{} = {} bytes ({})\n", row.id, grouped(row.bytes), human(row.bytes));
    let _ = writeln!(out, "  {}: {}", row.consumer.text(), row.formula);
    let _ = writeln!(out, "  alive: {}; aligned to {} B; {} buffer(s)", row.lifetime.name(), row.align, row.buffers);
    if let Some(offset) = row.offset {
        let _ = writeln!(out, "  place: {:?} arena, from byte {}", row.arena, grouped(offset));
        let shared: Vec<&str> = plan
            .rows
            .iter()
            .filter(|o| o.id != row.id && o.pool == row.pool && o.arena == row.arena)
            .filter(|o| o.offset.is_some_and(|at| at < offset + row.bytes && offset < at + o.bytes))
            .map(|o| o.id.as_str())
            .collect();
        if !shared.is_empty() {
            let _ = writeln!(out, "  on the same bytes at other times: {}", shared.join(", "));
        }
    }
    if row.elastic {
        out += "  elastic: sized last, from what all other rows and the floor leave\n";
    }
    Some(out)
}

/// A refusal in full.
pub fn render_refusal(refusal: &Refusal) -> String {
    let mut out = format!("Refused: {}\n", refusal.message);
    for held in &refusal.held {
        let _ = writeln!(out, "  {held}");
    }
    for sheet in &refusal.short {
        let _ = writeln!(out, "  {}: {} bytes ({}) short", sheet.name, grouped(sheet.short), human(sheet.short));
        let _ = writeln!(
            out,
            "    needs {} and a floor of {} ({}); it has {} ({})",
            human(sheet.used),
            human(sheet.floor),
            sheet.floor_why,
            human(sheet.capacity),
            sheet.capacity_why
        );
    }
    if !refusal.largest.is_empty() {
        out += "Largest rows\n";
        for row in &refusal.largest {
            let _ = writeln!(out, "  {:<28} {:>12}  {}", row.id, human(row.bytes), row.formula);
        }
    }
    match refusal.largest_context {
        Some(context) => {
            let _ = writeln!(out, "Largest context that fits as things are: {} tokens", grouped(context.into()));
        }
        None if !refusal.short.is_empty() => out += "No context fits as things are, not even the smallest\n",
        None => {}
    }
    if let Some(context) = refusal.largest_context_without_held {
        let cards = refusal.held.iter().map(|h| h.card.as_str()).collect::<Vec<_>>().join(", ");
        let _ = writeln!(out, "Largest context that fits without {cards}: {} tokens", grouped(context.into()));
    }
    if !refusal.remedies.is_empty() {
        out += "What helps (each was planned and fits), best first\n";
        for remedy in &refusal.remedies {
            let _ = writeln!(out, "  {}: {}", remedy.change, remedy.outcome);
        }
    } else if !refusal.short.is_empty() {
        out += "Nothing that this program can change makes it fit\n";
    }
    let assumptions: Vec<String> = refusal.assumptions.iter().map(|a| format!("{} = {} ({})", a.what, a.value, a.why)).collect();
    list(&mut out, "Assumed, because nobody has measured it", &assumptions);
    out
}
