//! Calls of extensions.

use crate::Error;
use crate::client::{Client, unexpected_reply};
use crate::cost_observer::CostObserver;
use crate::message::{Message, Reply};
use crate::replies;
use bytes::Bytes;
use sandstorm_net::rpc::{CallCost, OP_FLAG_COST};
use std::sync::Arc;

/// A call, and what it cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasuredCall {
    /// Its reply, or how it ended otherwise.
    pub result: Result<Bytes, Error>,
    /// What it cost; `None`: it did not run, or the server is older than this and does not tell.
    pub cost: Option<CallCost>,
}

impl Client {
    /// The same connection for calls whose cost is told to `observe` before they return, also that of a call that
    /// failed or was killed: typed ones ([`Client::call`], generated clients) and those with bytes
    /// ([`Client::invoke`]). A call that did not run has none; queries and calls in a batch have none either. The
    /// server measures each call anyway, and tells it in 56 bytes more of the answer.
    ///
    /// ```no_run
    /// # async fn example(client: sandstorm_client::Client) -> Result<(), sandstorm_client::TypedCallError> {
    /// let client = client.on_cost(|cost| println!("{} ns of CPU, {} reads", cost.cpu_ns, cost.reads));
    /// let total: u64 = client.call("bank.total", &()).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn on_cost(&self, observe: impl Fn(CallCost) + Send + Sync + 'static) -> Client {
        self.with_cost_observer(CostObserver(Arc::new(observe)))
    }

    /// Calls the newest version of the extension `name`; gives its reply.
    pub async fn invoke(&self, name: &str, args: &[u8]) -> Result<Bytes, Error> {
        self.invoke_version(name, 0, args).await
    }

    /// Calls that version of the extension `name` (0: the newest).
    pub async fn invoke_version(&self, name: &str, version: u64, args: &[u8]) -> Result<Bytes, Error> {
        if let Some(CostObserver(observe)) = &self.cost_observer {
            let MeasuredCall { result, cost } = self.invoke_measured(name, version, args).await?;
            cost.into_iter().for_each(|cost| observe(cost));
            return result;
        }
        reply_of(&self.called(false, |message, key| message.call(name, version, args, (0, key))).await?)
    }

    /// Calls the newest version of the extension `name` where it does no harm if it runs twice, as one that only reads.
    /// The server remembers no answer to it, so it is cheaper, and may run again if its packet, or its answer, is lost.
    pub async fn query(&self, name: &str, args: &[u8]) -> Result<Bytes, Error> {
        reply_of(&self.called(true, |message, key| message.call(name, 0, args, (0, key))).await?)
    }

    /// Calls that version of the extension `name` (0: the newest), and has the server tell what the call cost, also if
    /// it failed or was killed.
    ///
    /// # Errors
    /// Those of a message without an answer, such as [`Error::Timeout`]. How the call itself ended is in
    /// [`MeasuredCall::result`].
    pub async fn invoke_measured(&self, name: &str, version: u64, args: &[u8]) -> Result<MeasuredCall, Error> {
        let append = |message: &mut Message, key: Option<&[u8]>| message.call(name, version, args, (OP_FLAG_COST, key));
        let response = self.called(false, append).await?;
        let result = match replies::decode_single_reply(&response) {
            Ok(Reply::Invoked(bytes)) => Ok(bytes),
            Ok(other) => return Err(unexpected_reply("invoke", &other)),
            Err(error) => Err(error),
        };
        Ok(MeasuredCall { result, cost: replies::decode_cost(&response) })
    }

    /// The response to a call, which a client near a key sends to the server that owns the key.
    async fn called(&self, may_repeat: bool, append: impl Fn(&mut Message, Option<&[u8]>)) -> Result<Bytes, Error> {
        let key = self.near_key.as_deref();
        let build = || {
            Message::of(|message| match may_repeat {
                true => message.harmless(|message| append(message, key)),
                false => append(message, key),
            })
        };
        match &self.near_key {
            Some(key) => self.links.request(key, build, self.deadline).await,
            None => self.response(build()).await,
        }
    }
}

fn reply_of(response: &Bytes) -> Result<Bytes, Error> {
    match replies::decode_single_reply(response)? {
        Reply::Invoked(bytes) => Ok(bytes),
        other => Err(unexpected_reply("invoke", &other)),
    }
}
