//! What the tests of the server share: a server in this process, and a client that does exactly what it is told.
#![allow(dead_code)] // every test binary uses its own part

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use strata::backend::cpu::{CpuBackend, CpuOptions, Mode};
use strata::engine::service::{OpenEngine, Opened, Service, ServiceOptions};
use strata::engine::{Engine, OpenOptions, VisionOptions};
use strata::gguf::ModelFiles;
use strata::model::Model;
use strata::picture::Preprocess;
use strata::sample::SamplingParams;
use strata::server::{App, ModelFacts, Server, ServerOptions};
use strata::tokenizer::{ChatTemplate, Tokenizer};

pub const CONTEXT: u32 = 1024;

/// The model that is part of the program.
pub const BUILT_IN: &str = "assets/tiny-flash-next-IQ3_XXS.gguf";

/// A server to be started.
pub struct Setup {
    /// File of the model, from the root of the repository.
    pub model: &'static str,
    /// Tokens that a slot holds.
    pub context: u32,
    pub slots: u32,
    pub prompt_rows: u32,
    /// So many times the engine cannot be opened.
    pub failing_opens: Arc<AtomicUsize>,
    pub service: ServiceOptions,
    pub options: ServerOptions,
    /// A chat template in place of the file's.
    pub template: Option<&'static str>,
    /// The server takes pictures as if the engine had this eye.
    pub vision: Option<Preprocess>,
    /// The engine has the tiny vision encoder.
    pub sees: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        let sampling = SamplingParams { seed: Some(1), ..SamplingParams::greedy() };
        let options = ServerOptions { model_name: "tiny".into(), sampling, ..ServerOptions::default() };
        Setup {
            model: BUILT_IN,
            context: CONTEXT,
            slots: 2,
            prompt_rows: 64,
            failing_opens: Arc::default(),
            service: ServiceOptions::default(),
            options,
            template: None,
            vision: None,
            sees: false,
        }
    }
}

fn open_engine(
    files: &Arc<ModelFiles>,
    (context, slots, prompt_rows): (u32, u32, u32),
    vision: Option<VisionOptions>,
) -> Result<Engine, String> {
    let model = Arc::new(Model::open(files).map_err(|e| e.to_string())?);
    let threads = NonZeroUsize::new(2).expect("threads");
    let cpu = CpuBackend::new(CpuOptions::new(Mode::Fast).with_threads(threads)).map_err(|e| e.to_string())?;
    let sizes = OpenOptions { context, slots, prompt_rows, decode_rows: slots, max_outputs: slots, ..OpenOptions::default() };
    let options = OpenOptions { vision, ..sizes };
    Engine::open(Arc::clone(files), model, Box::new(cpu), options, &mut |_| ()).map_err(|e| e.to_string())
}

/// The tiny vision encoder, which fits the built-in model.
fn eye() -> VisionOptions {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/vision/tiny-vision.gguf");
    let files = Arc::new(ModelFiles::open(&path).expect("the encoder opens"));
    VisionOptions { files, max_tokens: 35, kept_tokens: 70 }
}

impl Setup {
    pub fn start(self) -> Server {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(self.model);
        let files = Arc::new(ModelFiles::open(&path).expect("the model opens"));
        let model = Model::open(&files).expect("the model is valid");
        let tokenizer = Arc::new(Tokenizer::from_metadata(files.metadata()).expect("the tokenizer is valid"));
        let template = match self.template {
            Some(source) => ChatTemplate::from_source(&tokenizer, source),
            None => ChatTemplate::new(&tokenizer),
        };
        let (context, slots, rows, failing) = (self.context, self.slots, self.prompt_rows, self.failing_opens);
        let vision = self.sees.then(eye);
        let open: OpenEngine = Box::new(move || {
            let fails = failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
            let engine =
                if fails { Err("a test's refusal".into()) } else { open_engine(&files, (context, slots, rows), vision.clone()) };
            Ok(Opened { engine: engine?, plan: None, cards: vec![] })
        });
        let service = Service::start(Arc::clone(&tokenizer), open, self.service).expect("a thread");
        service.wait_until_open(Duration::from_secs(60));
        let facts = ModelFacts {
            name: model.name.clone(),
            file: "tiny.gguf".into(),
            context: context as usize,
            trained_context: model.dims().context as usize,
            vocab: tokenizer.vocab_len(),
            embedding_width: model.dims().pooling.map(|_| model.dims().width as usize),
            vision: self.vision.or_else(|| service.status().engine.and_then(|engine| engine.pictures)),
        };
        let app = Arc::new(App::new(service, facts, tokenizer, template.expect("the template is valid"), self.options));
        Server::start(app, SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port")
    }
}

pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> Json {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The events of a stream: name (if any) and data.
    pub fn events(&self) -> Vec<(Option<String>, String)> {
        let field = |frame: &str, key: &str| frame.lines().find_map(|line| line.strip_prefix(key).map(str::to_owned));
        let frames = self.body.split("\n\n").filter(|frame| !frame.is_empty() && !frame.starts_with(':'));
        frames.map(|frame| (field(frame, "event: "), field(frame, "data: ").expect("data"))).collect()
    }

    /// The data of all events but `[DONE]`.
    pub fn data(&self) -> Vec<Json> {
        let data = self.events().into_iter().map(|(_, data)| data).filter(|data| data != "[DONE]");
        data.map(|data| serde_json::from_str(&data).expect("events are JSON")).collect()
    }
}

/// A connection with a request on it whose answer is still to be read.
pub struct Pending {
    pub stream: BufReader<TcpStream>,
}

pub fn request_text(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        text.push_str("host: localhost\r\n");
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text + "\r\n" + body
}

pub fn send(server: &Server, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Pending {
    let mut stream = TcpStream::connect(server.address()).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
    stream.write_all(request_text(method, path, headers, body).as_bytes()).expect("the request is sent");
    Pending { stream: BufReader::new(stream) }
}

impl Pending {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    pub fn head(&mut self) -> (u16, Vec<(String, String)>) {
        let status = self.line();
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("status: {status:?}"));
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            match line.split_once(": ") {
                Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.to_owned())),
                None => return (status, headers),
            }
        }
    }

    /// The next chunk of a chunked body; `None` at its end.
    pub fn chunk(&mut self) -> Option<String> {
        let size = usize::from_str_radix(&self.line(), 16).expect("the size of a chunk");
        let mut bytes = vec![0; size + 2];
        self.stream.read_exact(&mut bytes).expect("a chunk");
        (size > 0).then(|| String::from_utf8(bytes[..size].to_vec()).expect("UTF-8"))
    }

    pub fn read(mut self) -> Reply {
        let (status, headers) = self.head();
        let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        let mut body = String::new();
        if chunked {
            while let Some(chunk) = self.chunk() {
                body.push_str(&chunk);
            }
        } else {
            self.stream.read_to_string(&mut body).expect("a body");
        }
        Reply { status, headers, body }
    }
}

pub fn get(server: &Server, path: &str) -> Reply {
    send(server, "GET", path, &[], "").read()
}

pub fn post(server: &Server, path: &str, body: &Json) -> Reply {
    send(server, "POST", path, &[("content-type", "application/json")], &body.to_string()).read()
}

/// Posts and expects success.
pub fn ask(server: &Server, path: &str, body: &Json) -> Json {
    let reply = post(server, path, body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

pub const FRANCE: &str = "What is the capital of France?";

pub fn user(text: &str) -> Json {
    json!([{ "role": "user", "content": text }])
}

/// Waits for something that happens soon.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A text of about that many tokens.
pub fn long_text(words: usize) -> String {
    (0..words).map(|i| ["the", "box", "of", "red", "keys"][i % 5]).collect::<Vec<_>>().join(" ")
}
