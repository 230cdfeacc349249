//! `strata serve`: the model behind HTTP, for programs and for a browser.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::args::{ComputeArgs, ModelArgs, SamplingArgs};
use super::error::CliError;
use super::interrupt::Interrupt;
use super::open::{Keeps, Loaded, OpenModel, Opening, Stopping};
use super::output::note;
use super::read::{MOST_SETTINGS_BYTES, read_file};
use super::text::{Chat, open_tokenizer};
use crate::engine::service::{OpenEngine, Opened, Service, ServiceOptions, State};
use crate::launch::LaunchError;
use crate::model::Pooling;
use crate::plan::{JOINT_ROWS, RefusalKind, Size};
use crate::server::{App, ModelFacts, STALL, Server, ServerOptions, listing};

const EXAMPLES: &str = "\
Examples:
  strata serve                                      the small built-in model on http://127.0.0.1:8080
  strata serve -m model.gguf --parallel 2           two conversations at once
  strata serve -m model.gguf --host 0.0.0.0 --api-key-file key.txt
                                                    for other machines too

Open the address in a browser to chat, or point a program at it: OPENAI_BASE_URL=http://127.0.0.1:8080/v1,
ANTHROPIC_BASE_URL=http://127.0.0.1:8080";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    service: SlotArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Network")]
struct NetworkArgs {
    /// Address to listen on; beyond this machine only with a key or --insecure-listen
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 8080)]
    port: u16,
    /// A key that clients must bring; may be given several times
    #[arg(long, value_name = "KEY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    api_key: Vec<String>,
    /// File with a key on every line
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Listen beyond this machine without any key: whoever reaches the port may use the model
    #[arg(long)]
    insecure_listen: bool,
    /// Another name under which this machine is addressed; may be given several times
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// A web page's origin that may use the server from a browser, such as http://localhost:3000; * is any
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Largest request
    #[arg(long, value_name = "MIB", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    max_body_mib: u32,
    /// Connections that are open at once
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65536))]
    max_connections: u32,
    /// Most seconds for one request, waiting included [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=604_800))]
    request_timeout: Option<u64>,
    /// Do not serve the page
    #[arg(long)]
    no_web: bool,
    /// Show the beginning of each request's text in the list of recent requests
    #[arg(long)]
    show_texts: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Serving")]
struct SlotArgs {
    /// Tokens that one conversation can hold; 0 is what the model was trained for
    /// [default: 8192, never more than the model was trained for]
    #[arg(short, long, value_name = "N")]
    ctx_size: Option<u32>,
    /// Conversations at once; each has a context of its own
    #[arg(long, alias = "np", value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    parallel: u32,
    /// Requests that may wait for their turn
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    queue: u32,
    /// Checkpoints of its state that a conversation keeps, so that earlier turns need not be read again
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(0..=64))]
    checkpoints: u32,
    /// RAM for conversations whose slots others need, so that they can go on without being read again: 8GiB
    /// [default: 1GiB, or none if there is no room]
    #[arg(long, value_name = "SIZE")]
    cache_ram: Option<Size>,
    /// Name under which the model is listed [default: that of the file]
    #[arg(long, visible_alias = "alias", value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    served_model_name: Option<String>,
    /// Let a thinking model think unless a request says otherwise
    #[arg(long, overrides_with = "no_think")]
    think: bool,
    /// Have a thinking model answer at once unless a request says otherwise
    #[arg(long, overrides_with = "think")]
    no_think: bool,
}

/// As in a chat; agents want more.
const USUAL_CONTEXT_TOKENS: u32 = 8192;

pub fn serve(args: &ServeArgs) -> Result<(), CliError> {
    let keys = read_keys(&args.network)?;
    if !args.network.host.is_loopback() && keys.is_empty() && !args.network.insecure_listen {
        return Err(CliError::Usage(format!(
            "listening on {} lets other machines in; give an --api-key that they must bring, or --insecure-listen if anybody may",
            args.network.host
        )));
    }
    let opened = Arc::new(OpenModel::open(&args.model)?);
    let tokenizer = Arc::new(open_tokenizer(&opened.files)?);
    let (template, stops) = Chat::open(&opened.files, &tokenizer)?.into_parts();
    let interrupt = Interrupt::install()?;
    let context = opened.context(args.service.ctx_size, 0, USUAL_CONTEXT_TOKENS);
    let mut facts = ModelFacts {
        name: opened.model.name.clone(),
        file: file_name(&opened.files.name()),
        context: context as usize,
        trained_context: opened.model.dims().context as usize,
        vocab: tokenizer.vocab_len(),
        embedding_width: opened.model.dims().pooling.map(|_| opened.model.dims().width as usize),
        vision: None,
    };
    let mut options = options(args, &facts, keys, stops);
    let address = SocketAddr::new(args.network.host, args.network.port);
    // Found out before a large model is loaded.
    TcpListener::bind(address).map(drop).map_err(|e| cannot_listen(address, &e))?;
    // The first engine is opened here, where its errors have exit codes.
    let opening = opening(args, &opened, context);
    let (first, keeps) = open_first(&opened, args, opening, &interrupt)?;
    facts.vision = first.engine.vision().cloned();
    if facts.vision.is_some() && !template.writes_pictures() {
        note("note: the chat template knows no pictures; their places are put into the text that it is given");
    }
    options.about["cache_ram"] = json!(Size(keeps.cache_ram).to_string());
    let service_options = ServiceOptions {
        queue: args.service.queue as usize,
        checkpoints: args.service.checkpoints as usize,
        parked_bytes: usize::try_from(keeps.cache_ram).unwrap_or(usize::MAX),
        ..ServiceOptions::default()
    };
    let reopening =
        Reopening { opened, compute: args.compute.clone(), opening: Opening { keeps, ..opening }, interrupt: interrupt.clone() };
    let service = Service::start(Arc::clone(&tokenizer), reopening.handing_out(first), service_options);
    let service = service.map_err(|e| CliError::Failed(format!("the engine's thread cannot start: {e}")))?;
    let app = Arc::new(App::new(service, facts, tokenizer, template, options));
    let server = Server::start(Arc::clone(&app), address).map_err(|e| cannot_listen(address, &e))?;
    banner(args, &app, server.address());
    watch(server, &interrupt)
}

fn cannot_listen(address: SocketAddr, error: &std::io::Error) -> CliError {
    let remedy = match error.kind() {
        ErrorKind::AddrNotAvailable => "--host must be an address of this machine",
        ErrorKind::PermissionDenied => "ports below 1024 may need more rights; choose another with --port",
        _ => "another --port may be free",
    };
    CliError::Failed(format!("cannot listen on {address}: {error}; {remedy}"))
}

/// Waits for ctrl-C, and says what happens to the engine meanwhile.
fn watch(mut server: Server, interrupt: &Interrupt) -> Result<(), CliError> {
    let mut restarts = 0;
    let mut stalled = false;
    while !interrupt.is_set() {
        std::thread::sleep(Duration::from_millis(100));
        let status = server.app().service.status();
        if status.restarts > restarts {
            restarts = status.restarts;
            note(format!("error: the engine failed and is opened again: {}", status.last_failure.as_deref().unwrap_or_default()));
        }
        if status.is_stalled(STALL) != stalled {
            stalled = !stalled;
            let activity = &status.activity;
            let request = activity.request.as_deref().unwrap_or("no request");
            note(match stalled {
                true => format!("warning: no progress for {} s: {} ({request})", STALL.as_secs(), activity.what),
                false => "the engine goes on".to_owned(),
            });
        }
        if let State::Down(reason) = status.state {
            note(format!("error: the engine cannot be opened: {reason}; the next request tries again"));
            while !interrupt.is_set() && matches!(server.app().service.status().state, State::Down(_)) {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
    note("stopping");
    server.stop();
    // Being told to stop is how a server ends well.
    Ok(())
}

fn opening(args: &ServeArgs, opened: &OpenModel, context: u32) -> Opening {
    // Answers are computed together; more of them take several windows.
    let joint_rows = args.service.parallel.min(JOINT_ROWS);
    let max_outputs = match opened.model.dims().pooling {
        // Every row of a window counts.
        Some(Pooling::Mean) => u32::MAX,
        Some(Pooling::Last) | None => joint_rows,
    };
    Opening {
        slots: args.service.parallel,
        decode_rows: joint_rows,
        max_outputs,
        ..Opening::new(context, &args.compute, Stopping::BetweenWindows)
    }
}

/// Room for conversations that lost their slots, where nobody says otherwise.
const USUAL_CACHE_RAM: Size = Size(1 << 30);

/// Opens the engine, without room for parked conversations if that is what does not fit and nobody asked for it.
fn open_first(
    opened: &OpenModel,
    args: &ServeArgs,
    opening: Opening,
    interrupt: &Interrupt,
) -> Result<(Opened, Keeps), CliError> {
    let checkpoints = args.service.parallel * args.service.checkpoints;
    let open = |cache_ram: Size| {
        let keeps = Keeps { checkpoints, cache_ram: cache_ram.0 };
        let loaded = opened.load(&args.compute, Opening { keeps, ..opening }, interrupt)?;
        Ok((loaded.opened(), keeps))
    };
    // Embeddings leave nothing behind that could be parked.
    let usual = if opened.model.dims().pooling.is_some() { Size(0) } else { USUAL_CACHE_RAM };
    match open(args.service.cache_ram.unwrap_or(usual)) {
        Err(CliError::Launch(LaunchError::Refused(refusal)))
            if args.service.cache_ram.is_none() && refusal.kind == RefusalKind::DoesNotFit =>
        {
            let without = open(Size(0))?;
            note(format!("there is no room to park conversations: --cache-ram 0 instead of {USUAL_CACHE_RAM}"));
            Ok(without)
        }
        opened => opened,
    }
}

/// What it takes to open the engine again.
struct Reopening {
    opened: Arc<OpenModel>,
    compute: ComputeArgs,
    opening: Opening,
    interrupt: Interrupt,
}

impl Reopening {
    /// Hands out the engine that is open already; later, after a failure, opens another.
    fn handing_out(self, first: Opened) -> OpenEngine {
        let mut first = Some(first);
        Box::new(move || {
            if let Some(engine) = first.take() {
                return Ok(engine);
            }
            let Reopening { opened, compute, opening, interrupt } = &self;
            let loaded = opened.load(compute, *opening, interrupt);
            loaded.map(Loaded::opened).map_err(|e| e.to_string())
        })
    }
}

fn read_keys(args: &NetworkArgs) -> Result<Vec<String>, CliError> {
    let mut keys = args.api_key.clone();
    if let Some(path) = &args.api_key_file {
        let text = read_file(path, MOST_SETTINGS_BYTES)?;
        let before = keys.len();
        keys.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned));
        if keys.len() == before {
            return Err(CliError::in_file(&path.display().to_string(), "it holds no key"));
        }
    }
    Ok(keys)
}

/// The last part of a path: where a model lies is nobody's business on the network.
fn file_name(path: &str) -> String {
    path.rsplit(['/', '\\']).next().unwrap_or(path).to_owned()
}

fn options(args: &ServeArgs, facts: &ModelFacts, keys: Vec<String>, stops: Vec<String>) -> ServerOptions {
    let network = &args.network;
    let stem = facts.file.strip_suffix(".gguf").unwrap_or(&facts.file).replace(' ', "-");
    let name = args.service.served_model_name.clone().unwrap_or(stem);
    let thinking = match (args.service.think, args.service.no_think) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    };
    let about = json!({
        "listen": SocketAddr::new(network.host, network.port).to_string(),
        "api_key": !keys.is_empty(),
        "allow_host": network.allow_host,
        "allow_origin": network.allow_origin,
        "max_body_mib": network.max_body_mib,
        "max_connections": network.max_connections,
        "request_timeout_seconds": network.request_timeout,
        "show_texts": network.show_texts,
        "ctx_size": facts.context,
        "parallel": args.service.parallel,
        "queue": args.service.queue,
        "checkpoints": args.service.checkpoints,
        "ubatch_size": args.compute.ubatch_size.0.map_or_else(|| json!("auto"), |rows| json!(rows)),
        "threads": args.compute.threads,
        "reference": args.compute.reference,
        "thinking": thinking,
    });
    ServerOptions {
        model_name: name,
        api_keys: keys,
        hosts: network.allow_host.clone(),
        origins: network.allow_origin.iter().map(|origin| origin.trim_end_matches('/').to_owned()).collect(),
        beyond_loopback: !network.host.is_loopback(),
        max_body_bytes: (network.max_body_mib as usize) << 20,
        max_connections: network.max_connections as usize,
        request_timeout: network.request_timeout.map(Duration::from_secs),
        sampling: args.sampling.params(),
        max_tokens: args.sampling.max_tokens(),
        stop: args.sampling.reverse_prompt.iter().cloned().chain(stops).collect(),
        ignore_eos: args.sampling.ignore_eos,
        thinking,
        web: !network.no_web,
        show_texts: network.show_texts,
        about,
        ..ServerOptions::default()
    }
}

fn banner(args: &ServeArgs, app: &App, address: SocketAddr) {
    let slots = args.service.parallel;
    note(format!("{}: {} tokens of context, {slots} at once", app.options.model_name, app.model.context));
    for line in listing(app.model.embedding_width.is_some()) {
        note(format!("  {line}"));
    }
    if app.options.beyond_loopback && app.options.api_keys.is_empty() {
        note("warning: anybody who reaches this port can use the model (--insecure-listen)");
    }
    note(format!("listening on http://{address}{}", if app.options.web { " - open it in a browser to chat" } else { "" }));
}
