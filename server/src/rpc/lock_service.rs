//! `holdfast.v1.LockService`: bytes come in, frames go to the hub, answers go out.

use std::num::NonZeroU32;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use holdfast_core::{Deed, Label, LockName, NamePrefix, Verb};
use holdfast_proto::v1;
use holdfast_proto::v1::lock_service_server::LockService;
use holdfast_proto::v1::{
    ClientFrames, InspectRequest, InspectResponse, ListRequest, ListResponse, RefusalReason,
    ServerFrames, StatusRequest, StatusResponse,
};
use holdfast_runtime::{Pipe, TransportError};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

use super::access::{By, Door, token_of};
use super::acts::Act;
use super::past::{self, Past};
use super::{NodeInfo, explain, reads, refused, status};
use crate::session::error::CallError;
use crate::session::{Hub, StreamError};

/// Messages between a stream's outbox and the transport. Few: waiting frames belong in the outbox, where
/// they are counted and share messages.
const MESSAGES_IN_FLIGHT: usize = 4;
/// Messages between a watcher and the transport. One: what waits belongs in the news, where it is
/// counted and shared by all watchers.
const WATCH_MESSAGES_IN_FLIGHT: usize = 1;

/// The service.
#[derive(Debug)]
pub(super) struct LockApi {
    hub: Arc<Hub>,
    info: Arc<dyn NodeInfo>,
    door: Door,
    past: Past,
}

impl LockApi {
    pub(super) fn new(hub: Arc<Hub>, info: Arc<dyn NodeInfo>, door: Door) -> Self {
        let past = Past::new(hub.clone());
        Self { hub, info, door, past }
    }

    /// Freezes names, or lifts a freeze, for a caller who may.
    async fn set_freeze(&self, by: By, (prefix, deed): (NamePrefix, Deed)) -> Result<(), Status> {
        self.door.allow_on(&by.caller, Verb::Freeze, prefix.as_str())?;
        let caller = by.caller.clone();
        let act = Act::asked(by, &deed);
        let set = self.hub.set_freeze(&caller, deed).await;
        let set = set.map_err(|error| status::of_call_error(&error));
        act.end(set.map(|(index, ())| (Some(index), ())))
    }

    /// Serves a stream in a task of its own, until the client is gone or the hub ends it: what it sends,
    /// and then how it ended.
    fn stream<T: Send + 'static>(
        &self,
        task: &'static str,
        sent: mpsc::Receiver<T>,
        serve: impl Future<Output = Result<(), StreamError>> + Send + 'static,
    ) -> Response<BoxStream<'static, Result<T, Status>>> {
        let (tell, end) = oneshot::channel();
        let refusals = self.hub.refusals().clone();
        let serve = async move {
            let ended = serve.await;
            if let Err(error) = &ended {
                refused::note(&refusals, &status::of_stream_error(error));
            }
            // The receiver is gone if the client is.
            let _ = tell.send(ended);
        };
        self.hub.runtime().spawn(task, serve).detach();
        Response::new(ReceiverStream::new(sent).map(Ok).chain(status::last_word(end)).boxed())
    }
}

#[tonic::async_trait]
impl LockService for LockApi {
    type SessionStream = BoxStream<'static, Result<ServerFrames, Status>>;
    type WatchStream = BoxStream<'static, Result<v1::WatchResponse, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<ClientFrames>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (caller, token) = (self.door.caller(&request).await?, token_of(&request));
        let (outgoing, frames) = mpsc::channel(MESSAGES_IN_FLIGHT);
        let incoming = request
            .into_inner()
            .map(|message| message.map_err(|status| of_status(&status)))
            .boxed();
        let hub = self.hub.clone();
        let serve = async move { hub.serve(Pipe { outgoing, incoming }, &caller).await };
        Ok(self.stream("session-stream", frames, self.door.while_it_counts(token, serve)))
    }

    async fn inspect(
        &self,
        request: Request<InspectRequest>,
    ) -> Result<Response<InspectResponse>, Status> {
        let caller = self.door.caller(&request).await?;
        reads::inspect(&self.hub, &caller, &request.into_inner()).await.map(Response::new)
    }

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        let caller = self.door.caller(&request).await?;
        reads::list(&self.hub, &caller, &request.into_inner()).await.map(Response::new)
    }

    async fn status(
        &self,
        request: Request<StatusRequest>,
    ) -> Result<Response<StatusResponse>, Status> {
        self.door.admit(&request, Verb::Status).await?;
        Ok(Response::new(self.info.status()))
    }

    async fn watch(
        &self,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (caller, token) = (self.door.caller(&request).await?, token_of(&request));
        let asked = request.into_inner();
        reads::check_prefix(&asked.prefix)?;
        let watcher = self.hub.watch(&asked, &caller).await;
        let watcher = watcher.map_err(|error| status::of_stream_error(&error))?;
        let (outgoing, messages) = mpsc::channel(WATCH_MESSAGES_IN_FLIGHT);
        let hub = self.hub.clone();
        let serve = async move { hub.serve_watch(watcher, outgoing).await };
        Ok(self.stream("watch", messages, self.door.while_it_counts(token, serve)))
    }

    async fn check_token(
        &self,
        request: Request<v1::CheckTokenRequest>,
    ) -> Result<Response<v1::CheckTokenResponse>, Status> {
        let caller = self.door.caller(&request).await?;
        reads::check_token(&self.hub, &caller, &request.into_inner()).await.map(Response::new)
    }

    async fn open_session(
        &self,
        request: Request<v1::OpenSessionRequest>,
    ) -> Result<Response<v1::OpenSessionResponse>, Status> {
        let caller = self.door.caller(&request).await?;
        answer(self.hub.open_session(&request.into_inner(), &caller).await)
    }

    async fn keep_alive(
        &self,
        request: Request<v1::KeepAliveRequest>,
    ) -> Result<Response<v1::KeepAliveResponse>, Status> {
        self.door.owner(&request, request.get_ref().session.as_ref()).await?;
        answer(self.hub.keep_alive(&request.into_inner()).await)
    }

    async fn keep_alive_many(
        &self,
        request: Request<v1::KeepAliveManyRequest>,
    ) -> Result<Response<v1::KeepAliveManyResponse>, Status> {
        // Whose session each is, is asked where it is renewed.
        let caller = self.door.caller(&request).await?;
        answer(self.hub.keep_alive_many(&request.into_inner(), &caller).await)
    }

    async fn acquire(
        &self,
        request: Request<v1::AcquireRequest>,
    ) -> Result<Response<v1::AcquireResponse>, Status> {
        self.door.owner(&request, request.get_ref().session.as_ref()).await?;
        answer(self.hub.acquire(traced(request)).await)
    }

    async fn cancel(
        &self,
        request: Request<v1::CancelRequest>,
    ) -> Result<Response<v1::CancelResponse>, Status> {
        self.door.owner(&request, request.get_ref().session.as_ref()).await?;
        answer(self.hub.cancel(request.into_inner()).await)
    }

    async fn release(
        &self,
        request: Request<v1::ReleaseRequest>,
    ) -> Result<Response<v1::ReleaseResponse>, Status> {
        self.door.owner(&request, request.get_ref().session.as_ref()).await?;
        answer(self.hub.release(request.into_inner()).await)
    }

    async fn set_value(
        &self,
        request: Request<v1::SetValueRequest>,
    ) -> Result<Response<v1::SetValueResponse>, Status> {
        self.door.owner(&request, request.get_ref().session.as_ref()).await?;
        answer(self.hub.set_value(request.into_inner()).await)
    }

    async fn close_session(
        &self,
        request: Request<v1::CloseSessionRequest>,
    ) -> Result<Response<v1::CloseSessionResponse>, Status> {
        self.door.owner(&request, request.get_ref().session.as_ref()).await?;
        answer(self.hub.close_session(&request.into_inner()).await)
    }

    async fn import(
        &self,
        request: Request<v1::ImportRequest>,
    ) -> Result<Response<v1::ImportResponse>, Status> {
        let by = self.door.by(&request).await?;
        let (caller, request) = (by.caller.clone(), request.into_inner());
        // Each group is decided where it is proposed. What the rules refuse must write no line here, so the
        // first name stands for all.
        let may =
            first_name(&request).is_some_and(|name| self.door.may(&caller, Verb::Import, name));
        let groups = request.groups.len();
        let act = may.then(|| Act::asked(by, &format_args!("Import {{ groups: {groups} }}")));
        let imported = self.hub.import(&request, &caller).await;
        let imported = imported.map_err(|error| status::of_call_error(&error));
        let imported = match act {
            Some(act) => act.end(imported.map(|response| (None, response))),
            None => imported,
        };
        imported.map(Response::new)
    }

    async fn inspect_session(
        &self,
        request: Request<v1::InspectSessionRequest>,
    ) -> Result<Response<v1::InspectSessionResponse>, Status> {
        let caller = self.door.caller(&request).await?;
        reads::inspect_session(&self.hub, &caller, &request.into_inner()).await.map(Response::new)
    }

    async fn explain(
        &self,
        request: Request<v1::ExplainRequest>,
    ) -> Result<Response<v1::ExplainResponse>, Status> {
        let caller = self.door.caller(&request).await?;
        explain::explain(&self.hub, &caller, &request.into_inner()).await.map(Response::new)
    }

    async fn set_limit(
        &self,
        request: Request<v1::SetLimitRequest>,
    ) -> Result<Response<v1::SetLimitResponse>, Status> {
        let by = self.door.by(&request).await?;
        let v1::SetLimitRequest { name, limit } = request.into_inner();
        let lock = read_name("lock name", &name)?;
        self.door.allow_on(&by.caller, Verb::Limit, lock.as_str())?;
        let at_least = || status::invalid(format!("the limit of {lock} is at least 1"));
        let limit = limit.map(|limit| NonZeroU32::new(limit).ok_or_else(at_least)).transpose()?;
        let caller = by.caller.clone();
        let act = Act::asked(by, &Deed::SetLimit { lock: lock.clone(), limit });
        let set = self.hub.set_limit(&caller, lock, limit).await;
        let set = set.map_err(|error| status::of_call_error(&error));
        act.end(set.map(|(index, ())| (Some(index), ())))?;
        Ok(Response::new(v1::SetLimitResponse {}))
    }

    async fn freeze(
        &self,
        request: Request<v1::FreezeRequest>,
    ) -> Result<Response<v1::FreezeResponse>, Status> {
        let by = self.door.by(&request).await?;
        let v1::FreezeRequest { prefix, message } = request.into_inner();
        let prefix = read_prefix(&prefix)?;
        let message = Label::parse(&message);
        let message = message.map_err(|error| status::of_text_error("message", &error))?;
        self.set_freeze(by, (prefix.clone(), Deed::Freeze { prefix, message })).await?;
        Ok(Response::new(v1::FreezeResponse {}))
    }

    async fn thaw(
        &self,
        request: Request<v1::ThawRequest>,
    ) -> Result<Response<v1::ThawResponse>, Status> {
        let by = self.door.by(&request).await?;
        let prefix = read_prefix(&request.into_inner().prefix)?;
        self.set_freeze(by, (prefix.clone(), Deed::Thaw { prefix })).await?;
        Ok(Response::new(v1::ThawResponse {}))
    }

    async fn list_freezes(
        &self,
        request: Request<v1::ListFreezesRequest>,
    ) -> Result<Response<v1::ListFreezesResponse>, Status> {
        let caller = self.door.caller(&request).await?;
        reads::list_freezes(&self.hub, &caller).await.map(Response::new)
    }

    async fn busiest(
        &self,
        request: Request<v1::BusiestRequest>,
    ) -> Result<Response<v1::BusiestResponse>, Status> {
        let caller = self.door.caller(&request).await?;
        reads::busiest(&self.hub, &caller, request.get_ref()).await.map(Response::new)
    }

    async fn list_sessions(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        let caller = self.door.caller(&request).await?;
        reads::list_sessions(&self.hub, &caller, request.get_ref()).await.map(Response::new)
    }

    async fn history(
        &self,
        request: Request<v1::HistoryRequest>,
    ) -> Result<Response<v1::HistoryResponse>, Status> {
        let caller = self.door.caller(&request).await?;
        let asked = past::read_request(request.get_ref())?;
        self.door.allow_on(&caller, Verb::History, past::names(&asked))?;
        let page = self.past.read(asked).await?;
        let node_id = self.info.status().node_id;
        Ok(Response::new(v1::HistoryResponse { node_id, ..page }))
    }

    async fn advance(
        &self,
        request: Request<v1::AdvanceRequest>,
    ) -> Result<Response<v1::AdvanceResponse>, Status> {
        let caller = self.door.caller(&request).await?;
        let v1::AdvanceRequest { name, by } = request.into_inner();
        let sequence = read_name("name of the sequence", &name)?;
        self.door.allow_on(&caller, Verb::Sequence, sequence.as_str())?;
        let advanced = self.hub.advance(&caller, sequence, by).await;
        let (index, first) = advanced.map_err(|error| status::of_call_error(&error))?;
        Ok(Response::new(v1::AdvanceResponse { index: index.get(), first }))
    }

    async fn begin_sequence(
        &self,
        request: Request<v1::BeginSequenceRequest>,
    ) -> Result<Response<v1::BeginSequenceResponse>, Status> {
        let by = self.door.by(&request).await?;
        let v1::BeginSequenceRequest { name, at } = request.into_inner();
        let sequence = read_name("name of the sequence", &name)?;
        self.door.allow_on(&by.caller, Verb::Sequence, sequence.as_str())?;
        let caller = by.caller.clone();
        let act = Act::asked(by, &Deed::BeginSequence { sequence: sequence.clone(), at });
        let begun = self.hub.begin_sequence(&caller, sequence, at).await;
        let begun = begun.map_err(|error| status::of_call_error(&error));
        act.end(begun.map(|(index, ())| (Some(index), ())))?;
        Ok(Response::new(v1::BeginSequenceResponse {}))
    }

    async fn list_sequences(
        &self,
        request: Request<v1::ListSequencesRequest>,
    ) -> Result<Response<v1::ListSequencesResponse>, Status> {
        let caller = self.door.caller(&request).await?;
        reads::list_sequences(&self.hub, &caller, &request.into_inner()).await.map(Response::new)
    }
}

fn read_name(what: &str, text: &str) -> Result<LockName, Status> {
    LockName::parse(text).map_err(|error| status::of_text_error(what, &error))
}

fn read_prefix(text: &str) -> Result<NamePrefix, Status> {
    NamePrefix::parse(text).map_err(|error| status::of_text_error("prefix", &error))
}

/// The first name of an import, if it is one.
fn first_name(request: &v1::ImportRequest) -> Option<&str> {
    let name = &request.groups.first()?.rows.first()?.name;
    str::from_utf8(name).ok()
}

fn answer<T>(result: Result<T, CallError>) -> Result<Response<T>, Status> {
    result.map(Response::new).map_err(|error| status::of_call_error(&error))
}

/// An error of the incoming half. A message that could not be decoded has an error of its own, because
/// the client has to learn that; everything else ends the stream like a plain end.
fn of_status(status: &Status) -> TransportError {
    let message = status.message().to_owned();
    match status.code() {
        Code::Internal | Code::OutOfRange | Code::InvalidArgument | Code::ResourceExhausted => {
            TransportError::Refused { reason: RefusalReason::Invalid, message }
        }
        _ => TransportError::Unreachable { endpoint: "client".to_owned(), detail: message },
    }
}

/// The request, with the trace that came as metadata if it has none itself.
fn traced(request: Request<v1::AcquireRequest>) -> v1::AcquireRequest {
    let (metadata, _, mut asked) = request.into_parts();
    let header = metadata.get("traceparent").and_then(|header| header.to_str().ok());
    if let (Some(acquire), Some(header)) = (&mut asked.acquire, header)
        && acquire.traceparent.is_empty()
    {
        header.clone_into(&mut acquire.traceparent);
    }
    asked
}
