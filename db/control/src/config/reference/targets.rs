//! Sections about targets: the servers to which this server sends something.

use super::{ReferenceSection, number, row};
use crate::limits::{METRIC_SERIES_MAX, OTLP_INTERVAL_MAX_S};

pub(super) fn webhooks() -> ReferenceSection {
    let rows = vec![
        row("url", "", "needed", "with `http://` or `https://`; without a password"),
        row("secret_file", "", "needed", "file with the key that bodies are signed with, at least 20 bytes"),
        row("codes", "", "all", "list of [codes](operations.md#events), or of their first words such as `extension`"),
        row("ca", "", "the public authorities", "file with certificates (PEM) that are believed"),
        row("fingerprint", "", "none", "`sha256:` and the digest of the one certificate that is believed"),
    ];
    ReferenceSection {
        title: "[[webhooks]]",
        about: "Places to which events are sent: [operations](operations.md#webhooks). At most 8.",
        before: "[[webhooks]]\nurl = 'http://127.0.0.1:1/'\nsecret_file = '/none'\n",
        rows,
    }
}

pub(super) fn otlp() -> ReferenceSection {
    let rows = vec![
        row(
            "url",
            "`--otlp`",
            "none",
            "with `http://` or `https://`, and the path (`/v1/metrics`); without a password",
        ),
        number("interval_s", "", "30", (1, OTLP_INTERVAL_MAX_S), "seconds between two pushes"),
        number("top", "", "50", (0, METRIC_SERIES_MAX as u64), "of how many extensions and tables there are series"),
        row("headers_file", "", "none", "file with a header a line (`authorization: Bearer …`); at most 16"),
        row("ca", "", "the public authorities", "file with certificates (PEM) that are believed"),
        row("fingerprint", "", "none", "`sha256:` and the digest of the one certificate that is believed"),
    ];
    ReferenceSection {
        title: "[otlp]",
        about: "Where metrics are pushed to: [operations](operations.md#otlp).",
        before: "[otlp]\nurl = 'http://127.0.0.1:4318/v1/metrics'\n",
        rows,
    }
}
