//! `strata serve`: HTTP in front of the engine's service. Knows nothing of devices.
//!
//! All chat APIs become one [`chat::Chat`], which becomes requests for the service; the events that come back become
//! parts of an answer ([`turn`]), and each API writes these in its own words.

mod anthropic;
mod app;
mod chat;
mod doing;
mod error;
mod fields;
mod guard;
mod ids;
mod listener;
mod metrics;
mod native;
mod openai;
mod openapi;
mod pictures;
mod routes;
mod sse;
mod tools;
mod turn;
mod web;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

pub use app::{App, ModelFacts, ServerOptions};
pub use openapi::build as openapi_document;
pub use routes::listing;

/// A step of the engine that takes longer than this is told as a stall.
pub const STALL: Duration = Duration::from_secs(60);

/// After a request to stop, running answers get this long to say so to their clients.
const FAREWELL: Duration = Duration::from_secs(3);

/// A server that runs on threads of its own until it is dropped or stopped.
pub struct Server {
    address: SocketAddr,
    app: Arc<App>,
    stop: watch::Sender<bool>,
    runtime: Option<tokio::runtime::Runtime>,
    ended: Option<tokio::task::JoinHandle<()>>,
}

impl Server {
    /// Binds the address and begins to answer.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn start(app: Arc<App>, address: SocketAddr) -> io::Result<Server> {
        // Everything long has threads of its own; an idle second one would be woken for each token and take a core from the model.
        let threads = std::thread::available_parallelism().map_or(1, |n| (n.get() / 4).clamp(1, 4));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(threads).thread_name("http").enable_all().build()?;
        let (stop, stopped) = watch::channel(false);
        let listener = runtime.block_on(listener::Limited::bind(address, app.options.max_connections))?;
        let address = listener.address()?;
        let router = routes::router(Arc::clone(&app));
        let ended = runtime.spawn(listener::serve(listener, router, app.options.patience, stopped));
        Ok(Server { address, app, stop, runtime: Some(runtime), ended: Some(ended) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Tells running requests that it is over, then ends.
    pub fn stop(&mut self) {
        let _ = self.stop.send(true);
        self.app.service.stop();
        if let (Some(runtime), Some(ended)) = (self.runtime.take(), self.ended.take()) {
            // A client that keeps its connection open is not waited for.
            let _ = runtime.block_on(async { tokio::time::timeout(FAREWELL, ended).await });
            runtime.shutdown_background();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}
