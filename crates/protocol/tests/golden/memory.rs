//! Messages between a worker and a proxy on the same machine.

use super::{
    golden,
    samples::{key, result_key},
    shim::delta,
};
use baton_protocol::memory::{Bundle, FromHolder, ToHolder};
use serde_bytes::ByteBuf;

pub(crate) fn bundle() -> Bundle {
    Bundle {
        delta: delta(),
        digests: ByteBuf::from([0xab; 16]),
    }
}

golden!(messages_to_holders_are_read, "to_holder", ToHolder, [
    ToHolder::Fetch { key: key() },
    ToHolder::Deposit { key: key(), result: result_key(), bundle: bundle() },
], {
    ToHolder::Fetch { .. } => "fetch",
    ToHolder::Deposit { .. } => "deposit",
});

golden!(messages_of_holders_are_read, "from_holder", FromHolder, [
    FromHolder::Bundle(bundle()),
    FromHolder::Taken {},
    FromHolder::Unknown {},
], {
    FromHolder::Bundle(_) => "bundle",
    FromHolder::Taken {} => "taken",
    FromHolder::Unknown {} => "unknown",
});
