//! Calls of extensions.

use crate::Error;
use crate::client::{Client, unexpected_reply};
use crate::message::{Message, Reply};
use bytes::Bytes;

impl Client {
    /// Calls the newest version of the extension `name`; gives its reply.
    pub async fn invoke(&self, name: &str, args: &[u8]) -> Result<Bytes, Error> {
        self.invoke_version(name, 0, args).await
    }

    /// Calls that version of the extension `name` (0: the newest).
    pub async fn invoke_version(&self, name: &str, version: u64, args: &[u8]) -> Result<Bytes, Error> {
        let mut message = Message::new();
        message.invoke(name, version, args);
        self.reply(message).await
    }

    /// Calls the newest version of the extension `name` where it does no harm if it runs twice, as one that only reads.
    /// The server remembers no answer to it, so it is cheaper, and may run again if its packet, or its answer, is lost.
    pub async fn query(&self, name: &str, args: &[u8]) -> Result<Bytes, Error> {
        let mut message = Message::new();
        message.query(name, 0, args);
        self.reply(message).await
    }

    async fn reply(&self, message: Message) -> Result<Bytes, Error> {
        match self.single(message).await? {
            Reply::Invoked(bytes) => Ok(bytes),
            other => Err(unexpected_reply("invoke", &other)),
        }
    }
}
