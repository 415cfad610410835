//! Spans by the libraries of OpenTelemetry.

use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::time::Duration;
use std::{io, thread};

use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _,
    TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider,
};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::config::NodeConfig;

const HEADER: &str = "traceparent";
/// The header has 55 characters today; a later version of the standard may append some.
const HEADER_MAX: usize = 128;
/// Time between two exports of what there is.
const SENT_EVERY: Duration = Duration::from_secs(1);
/// How long the end of the process waits for its last spans.
const FLUSH_WITHIN: Duration = Duration::from_millis(500);

static EXPORT: OnceLock<Export> = OnceLock::new();

struct Export {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    /// The thread ends with it, so it stays as long as the process.
    _thread: oneshot::Sender<()>,
}

/// A caller's trace, which is sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace(SpanContext);

/// A span that began when it was made and ends when it is dropped.
#[derive(Debug)]
pub struct Span(Option<opentelemetry_sdk::trace::Span>);

/// Exports spans from here on, if the settings say where to. A second call changes nothing.
///
/// # Errors
///
/// The system gives no thread, or the endpoint cannot be used.
pub fn start(node: &NodeConfig) -> io::Result<()> {
    if node.otlp_endpoint.is_empty() {
        return Ok(());
    }
    let (endpoint, id) = (node.otlp_endpoint.clone(), node.node_id);
    let (tell, told) = channel();
    let (keep, ends) = oneshot::channel::<()>();
    thread::Builder::new().name("holdfast-traces".to_owned()).spawn(move || {
        // A connection lives in the event queue that it was made in.
        let queue = Builder::new_current_thread().enable_all().build();
        let made = queue.and_then(|queue| {
            let made = queue.block_on(async { provider(&endpoint, id) });
            made.map(|provider| (queue, provider)).map_err(io::Error::other)
        });
        match made {
            Ok((queue, provider)) => {
                // The receiver waits for it.
                let _ = tell.send(Ok(provider));
                let _ = queue.block_on(ends);
            }
            Err(error) => drop(tell.send(Err(error))),
        }
    })?;
    let provider = told.recv().map_err(io::Error::other)??;
    let tracer = provider.tracer("holdfastd");
    EXPORT.get_or_init(|| Export { provider, tracer, _thread: keep });
    Ok(())
}

/// Waits for the last spans before the process ends, half a second at most.
pub fn flush() {
    if let Some(export) = EXPORT.get() {
        // What is lost then is lost with the process.
        let _ = export.provider.shutdown_with_timeout(FLUSH_WITHIN);
    }
}

fn provider(
    endpoint: &str,
    id: u64,
) -> Result<SdkTracerProvider, opentelemetry_otlp::ExporterBuildError> {
    let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build()?;
    let resource = Resource::builder()
        .with_service_name("holdfastd")
        .with_attribute(KeyValue::new("service.instance.id", id.to_string()))
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    let often = BatchConfigBuilder::default().with_scheduled_delay(SENT_EVERY).build();
    let batches = BatchSpanProcessor::builder(exporter).with_batch_config(often).build();
    Ok(SdkTracerProvider::builder().with_span_processor(batches).with_resource(resource).build())
}

struct Header<'a>(&'a str);

impl Extractor for Header<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        (key == HEADER).then_some(self.0)
    }

    fn keys(&self) -> Vec<&str> {
        vec![HEADER]
    }
}

impl Trace {
    /// Reads a `traceparent`; `None` if it is none, if it is not sampled, or if nothing is exported.
    pub fn read(header: &str) -> Option<Self> {
        if header.is_empty() || header.len() > HEADER_MAX || EXPORT.get().is_none() {
            return None;
        }
        let reader = TraceContextPropagator::new();
        let context = reader.extract_with_context(&Context::new(), &Header(header));
        let place = context.span().span_context().clone();
        place.is_sampled().then_some(Self(place))
    }

    /// A span of a request.
    pub fn request(&self, name: &'static str) -> Span {
        self.span(SpanBuilder::from_name(name).with_kind(SpanKind::Server))
    }

    /// A span of what follows from a request.
    pub fn below(&self, name: &'static str) -> Span {
        self.span(SpanBuilder::from_name(name).with_kind(SpanKind::Internal))
    }
}

impl Trace {
    fn span(&self, builder: SpanBuilder) -> Span {
        let tracer = EXPORT.get().map(|export| &export.tracer);
        let above = Context::new().with_remote_span_context(self.0.clone());
        Span(tracer.map(|tracer| tracer.build_with_context(builder, &above)))
    }
}

impl Span {
    /// Sets a text.
    pub fn text(&mut self, name: &'static str, text: String) {
        self.set(KeyValue::new(name, text));
    }

    /// Sets a number.
    pub fn number(&mut self, name: &'static str, number: u64) {
        self.set(KeyValue::new(name, i64::try_from(number).unwrap_or(i64::MAX)));
    }

    fn set(&mut self, value: KeyValue) {
        if let Some(span) = &mut self.0 {
            span.set_attribute(value);
        }
    }

    /// Notes that something happened now.
    pub fn happened(&mut self, what: &'static str) {
        if let Some(span) = &mut self.0 {
            span.add_event(what, Vec::new());
        }
    }

    /// Notes why it failed.
    pub fn failed(&mut self, why: &'static str) {
        if let Some(span) = &mut self.0 {
            span.set_status(Status::error(why));
        }
    }
}
