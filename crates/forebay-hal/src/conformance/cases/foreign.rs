//! Streams that other libraries created.

use core::mem;

use forebay_core::Bytes;

use super::prelude::*;
use crate::{Call, Fill, Pattern, Stream, StreamHandle};

cases! { Streams "streams":
    an_adopted_stream_is_like_any_other needs FOREIGN_STREAMS | DATA wants ForeignStream,
    a_stream_not_adopted_is_refused needs FOREIGN_STREAMS wants ForeignStream,
    an_adopted_stream_is_not_destroyed_here needs FOREIGN_STREAMS wants ForeignStream,
    adopting_counts needs FOREIGN_STREAMS wants ForeignStream,
    forgetting_what_was_not_adopted_is_refused needs FOREIGN_STREAMS,
    a_stream_of_its_own_is_not_adopted needs FOREIGN_STREAMS,
    the_default_streams_value_is_adopted_as_the_default needs FOREIGN_STREAMS,
    a_foreign_stream_value_forgets_and_does_not_destroy needs FOREIGN_STREAMS wants ForeignStream
}

fn adopt(bench: &Bench) -> Step<StreamHandle> {
    let raw = bench.foreign()?;
    // SAFETY: the fixture keeps the stream alive beyond the case.
    Ok(unsafe { bench.foreign_streams()?.adopt_stream(raw) }?)
}

fn forget(bench: &Bench, stream: StreamHandle) -> Verdict {
    Ok(bench.foreign_streams()?.forget_stream(stream)?)
}

fn an_adopted_stream_is_like_any_other(bench: &Bench) -> Verdict {
    let foreign = adopt(bench)?;
    let own = bench.stream()?;
    let device = bench.device();
    ensure!(
        device.stream_id(foreign)? != device.stream_id(own)?,
        "a foreign stream has the identity of another"
    );
    let memory = bench.allocate(4096)?;
    let fill = |byte| Fill::linear(memory, Bytes::new(4096), Pattern::U8(byte));
    for round in 0..20_u8 {
        bench.enqueue_fill(&fill(2 * round)?, own)?;
        bench.order(own, foreign)?;
        bench.enqueue_fill(&fill(2 * round + 1)?, foreign)?;
        bench.order(foreign, own)?;
    }
    bench.done_soon("the foreign stream", foreign)?;
    bench.synchronize(own)?;
    let early = bench.read(memory, 4096)?.iter().filter(|&&byte| byte != 39).count();
    ensure_equal!("bytes that are not the last fill's", early, 0);
    forget(bench, foreign)
}

fn a_stream_not_adopted_is_refused(bench: &Bench) -> Verdict {
    let raw = StreamHandle(bench.foreign()?);
    let device = bench.device();
    let refuse = |when: &str| -> Verdict {
        invalid(Call::StreamId, when, device.stream_id(raw))?;
        invalid(Call::QueryStream, when, device.query_stream(raw))?;
        invalid(Call::SynchronizeStream, when, device.synchronize_stream(raw))
    };
    refuse("a stream before it is adopted")?;
    let foreign = adopt(bench)?;
    device.synchronize_stream(foreign)?;
    forget(bench, foreign)?;
    refuse("a stream after it is forgotten")
}

fn an_adopted_stream_is_not_destroyed_here(bench: &Bench) -> Verdict {
    let foreign = adopt(bench)?;
    let destroyed = bench.device().destroy_stream(foreign);
    invalid(Call::DestroyStream, "an adopted stream", destroyed)?;
    bench.device().synchronize_stream(foreign)?;
    forget(bench, foreign)
}

fn adopting_counts(bench: &Bench) -> Verdict {
    let first = adopt(bench)?;
    let second = adopt(bench)?;
    ensure_equal!("the handle of a stream adopted again", second, first);
    forget(bench, first)?;
    bench.device().synchronize_stream(second)?;
    forget(bench, second)?;
    let again = bench.foreign_streams()?.forget_stream(second);
    invalid(Call::ForgetStream, "a stream forgotten as often as it was adopted", again)
}

fn forgetting_what_was_not_adopted_is_refused(bench: &Bench) -> Verdict {
    let streams = bench.foreign_streams()?;
    let own = bench.stream()?;
    invalid(Call::ForgetStream, "a stream of its own", streams.forget_stream(own))?;
    let default = streams.forget_stream(StreamHandle::DEFAULT);
    invalid(Call::ForgetStream, "the default stream", default)?;
    bench.device().synchronize_stream(own)?;
    Ok(())
}

fn a_stream_of_its_own_is_not_adopted(bench: &Bench) -> Verdict {
    let own = bench.stream()?;
    // SAFETY: it is a live stream, if not a foreign one.
    let adopted = unsafe { bench.foreign_streams()?.adopt_stream(own.0) };
    invalid(Call::AdoptStream, "a stream of its own", adopted)
}

fn the_default_streams_value_is_adopted_as_the_default(bench: &Bench) -> Verdict {
    // SAFETY: the default stream is there as long as the device.
    let adopted = unsafe { bench.foreign_streams()?.adopt_stream(StreamHandle::DEFAULT.0) }?;
    ensure_equal!("the default stream, adopted", adopted, StreamHandle::DEFAULT);
    bench.device().synchronize_stream(adopted)?;
    forget(bench, adopted)?;
    bench.device().synchronize_stream(StreamHandle::DEFAULT)?;
    let again = bench.foreign_streams()?.forget_stream(adopted);
    invalid(Call::ForgetStream, "the default stream once too often", again)
}

fn a_foreign_stream_value_forgets_and_does_not_destroy(bench: &Bench) -> Verdict {
    let raw = bench.foreign()?;
    // SAFETY: the fixture keeps the stream alive beyond the case.
    let stream = unsafe { Stream::foreign(bench.shared(), raw) }?;
    ensure!(!stream.is_owned(), "a foreign stream is said to be owned");
    stream.synchronize()?;
    let handle = stream.handle();
    mem::drop(stream);
    let gone = bench.device().stream_id(handle);
    invalid(Call::StreamId, "a stream whose value went", gone)?;
    // It lives on: adopted again, it still works.
    let foreign = adopt(bench)?;
    bench.device().synchronize_stream(foreign)?;
    forget(bench, foreign)
}
