//! The thread that checks whether a certificate was replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use super::ServerCertificate;
use crate::limits::CERTIFICATE_CHECK_MS;

/// Checks from time to time, and when woken; stops when dropped.
#[derive(Debug)]
pub struct CertificateWatcher {
    identity: Arc<ServerCertificate>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl CertificateWatcher {
    /// Starts the thread; `changed` is called when the certificate is a new one.
    pub fn start(
        identity: Arc<ServerCertificate>,
        changed: impl Fn(&ServerCertificate) + Send + 'static,
    ) -> std::io::Result<CertificateWatcher> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, looked_at) = (stop.clone(), identity.clone());
        let thread = std::thread::Builder::new().name("certificate".into()).spawn(move || {
            while !stopped.load(Relaxed) {
                std::thread::park_timeout(Duration::from_millis(CERTIFICATE_CHECK_MS));
                if looked_at.look_again() {
                    changed(&looked_at);
                }
            }
        })?;
        Ok(CertificateWatcher { identity, stop, thread: Some(thread) })
    }

    /// Makes it check at once.
    pub fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// The watched certificate.
    pub(crate) fn identity(&self) -> &Arc<ServerCertificate> {
        &self.identity
    }
}

impl Drop for CertificateWatcher {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by its hook.
            let _panicked = thread.join();
        }
    }
}
