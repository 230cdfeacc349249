//! Connections: a limited number of them, and none that holds its place without sending a request.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// After the system could not give a connection (too many open files, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Holds a limited number of connections open; more of them wait in the system's queue.
pub struct Limited {
    listener: TcpListener,
    permits: Arc<Semaphore>,
}

impl Limited {
    pub async fn bind(address: SocketAddr, most: usize) -> io::Result<Limited> {
        Ok(Limited { listener: TcpListener::bind(address).await?, permits: Arc::new(Semaphore::new(most.max(1))) })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    async fn accept(&self) -> (TcpStream, Option<OwnedSemaphorePermit>) {
        // The semaphore is never closed.
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    // Tokens are small; waiting to join them would only delay them. A refusal costs nothing but that.
                    let _ = stream.set_nodelay(true);
                    return (stream, permit);
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }
}

/// Answers until told to stop, then lets what runs come to its end. A connection whose next request has not begun and said
/// what it wants within `patience` is closed.
pub async fn serve(listener: Limited, router: Router, patience: Duration, mut stopped: watch::Receiver<bool>) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(patience);
    let running = GracefulShutdown::new();
    loop {
        let (stream, permit) = tokio::select! {
            accepted = listener.accept() => accepted,
            // An error means that the server itself is gone.
            _ = stopped.wait_for(|stop| *stop) => break,
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = running.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            // What goes wrong on a connection is told to its client, if to anybody.
            let _ = connection.await;
            drop(permit);
        });
    }
    drop(listener);
    running.shutdown().await;
}
