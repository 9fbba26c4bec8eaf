//! Sessions of the page in browsers: a random id in a cookie stands for a token, which the browser does not keep. A
//! session sees what its token sees, and changes nothing, whichever token it came of. Sessions are in memory alone.
//!
//! One is begun with a token, or with a code that works once and not for long, which `sandstorm ui` prints: so no token
//! has to be pasted into a browser.

use std::time::{Duration, Instant};

use axum::http::{HeaderMap, header};
use data_encoding::BASE32_NOPAD;
use parking_lot::Mutex;

use super::access_tokens::AccessTokenTenant;
use super::caller::{CallerSource, RequestCaller};
use super::role::AccessRole;
use crate::limits::{
    PAGE_CODE_LIFETIME, PAGE_CODES, PAGE_SESSION_IDLE, PAGE_SESSION_LIFETIME, PAGE_SESSIONS, PAGE_SESSIONS_PER_TENANT,
};
use sandstorm_accounts::TokenHash;
use sandstorm_accounts::token::{self, TokenDigest};

/// The cookie's name.
pub(super) const COOKIE: &str = "sandstorm-session";
/// Bytes of randomness of a code: 80 bits, against guesses of two minutes, each of which waits.
const CODE_BYTES: usize = 10;

/// What a session or code stands for.
#[derive(Clone, Debug)]
pub(super) struct PageViewer {
    /// A role that changes nothing.
    pub(super) role: AccessRole,
    /// The tenant that is all it sees.
    pub(super) tenant: Option<AccessTokenTenant>,
    /// The token that it came of.
    pub(super) source: CallerSource,
    /// When that token ends by itself, in milliseconds since 1970.
    pub(super) expires_ms: Option<u64>,
    /// If it came of a tenant's own token: the credentials of that tenant, all of which have to hold still. Another
    /// server of the cluster may have replaced the token.
    pub(super) credentials: Vec<u64>,
}

impl PageViewer {
    /// The viewer that a caller becomes in a browser.
    pub(super) fn of(caller: &RequestCaller) -> PageViewer {
        PageViewer {
            role: caller.role().as_viewer(),
            tenant: caller.own().map(|own| AccessTokenTenant::of(&own.tenant)),
            source: caller.source().clone(),
            expires_ms: caller.expires_ms(),
            credentials: match (caller.source(), caller.own()) {
                (CallerSource::Tenant(_), Some(own)) => own.tenant.credentials().collect(),
                _ => Vec::new(),
            },
        }
    }

    fn tenant_id(&self) -> Option<u32> {
        self.tenant.as_ref().map(|of| of.id)
    }
}

struct PageSession {
    id: TokenDigest,
    viewer: PageViewer,
    begun: Instant,
    used: Instant,
}

impl PageSession {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.begun) >= PAGE_SESSION_LIFETIME || now.duration_since(self.used) >= PAGE_SESSION_IDLE
    }
}

struct SignInCode {
    code: TokenDigest,
    viewer: PageViewer,
    made: Instant,
}

#[derive(Default)]
struct PageSessionState {
    /// In the order in which they were begun.
    sessions: Vec<PageSession>,
    codes: Vec<SignInCode>,
}

/// See the head of this file.
#[derive(Default)]
pub(super) struct PageSessions(Mutex<PageSessionState>);

impl PageSessions {
    /// Begins a session, and returns its id. If there are too many, the oldest ends; of a tenant, its own oldest.
    pub(super) fn begin(&self, viewer: PageViewer) -> Option<String> {
        let (id, now) = (token::generate(), Instant::now());
        let mut state = self.0.lock();
        state.sessions.retain(|session| !session.is_over(now));
        let tenant = viewer.tenant_id();
        let of_tenant = |session: &PageSession| tenant.is_some() && session.viewer.tenant_id() == tenant;
        if state.sessions.iter().filter(|session| of_tenant(session)).count() >= PAGE_SESSIONS_PER_TENANT
            && let Some(oldest) = state.sessions.iter().position(of_tenant)
        {
            state.sessions.remove(oldest);
        }
        if state.sessions.len() >= PAGE_SESSIONS {
            // Operators are not signed out by tenants.
            let oldest_of_tenants = state.sessions.iter().position(|session| session.viewer.tenant.is_some());
            state.sessions.remove(oldest_of_tenants.unwrap_or(0));
        }
        let digest = TokenHash::of_presented(id.as_bytes())?;
        state.sessions.push(PageSession { id: digest, viewer, begun: now, used: now });
        Some(id)
    }

    /// What a session stands for. Compares with all of them, each in constant time.
    pub(super) fn find(&self, id: &[u8]) -> Option<PageViewer> {
        let (presented, now) = (TokenHash::of_presented(id)?, Instant::now());
        let mut state = self.0.lock();
        let mut found = None;
        for session in &mut state.sessions {
            if session.id.same(&presented) {
                found = Some(session);
            }
        }
        let session = found.filter(|session| !session.is_over(now))?;
        session.used = now;
        Some(session.viewer.clone())
    }

    /// Ends a session.
    pub(super) fn end(&self, id: &[u8]) {
        if let Some(presented) = TokenHash::of_presented(id) {
            self.0.lock().sessions.retain(|session| !session.id.same(&presented));
        }
    }

    /// Ends all that came of a token, and its codes.
    pub(super) fn end_of(&self, source: &CallerSource) {
        let mut state = self.0.lock();
        state.sessions.retain(|session| session.viewer.source != *source);
        state.codes.retain(|code| code.viewer.source != *source);
    }

    /// Ends all that show a tenant and nothing else.
    pub(super) fn end_of_tenant(&self, tenant: u32) {
        let mut state = self.0.lock();
        state.sessions.retain(|session| session.viewer.tenant_id() != Some(tenant));
        state.codes.retain(|code| code.viewer.tenant_id() != Some(tenant));
    }

    /// Makes a code that begins one session, and how long it can be used.
    pub(super) fn make_code(&self, viewer: PageViewer) -> Option<(String, Duration)> {
        let random = token::generate();
        let bytes = data_encoding::HEXLOWER.decode(random.as_bytes()).ok()?;
        let code = BASE32_NOPAD.encode(bytes.get(..CODE_BYTES)?);
        let (digest, now) = (TokenHash::of_presented(code.as_bytes())?, Instant::now());
        let mut state = self.0.lock();
        state.codes.retain(|code| now.duration_since(code.made) < PAGE_CODE_LIFETIME);
        let tenant = viewer.tenant_id();
        // A tenant has one code at a time, and takes none from others.
        if tenant.is_some() {
            state.codes.retain(|code| code.viewer.tenant_id() != tenant);
        }
        if state.codes.len() >= PAGE_CODES {
            let of_tenants = state.codes.iter().position(|code| code.viewer.tenant.is_some());
            state.codes.remove(of_tenants.unwrap_or(0));
        }
        state.codes.push(SignInCode { code: digest, viewer, made: now });
        Some((code, PAGE_CODE_LIFETIME))
    }

    /// What a code stands for, which is used up by this.
    pub(super) fn use_code(&self, code: &[u8]) -> Option<PageViewer> {
        let code: Vec<u8> = code.iter().filter(|byte| **byte != b'-').map(u8::to_ascii_uppercase).collect();
        let (presented, now) = (TokenHash::of_presented(&code)?, Instant::now());
        let mut state = self.0.lock();
        state.codes.retain(|code| now.duration_since(code.made) < PAGE_CODE_LIFETIME);
        let mut found = None;
        for (at, code) in state.codes.iter().enumerate() {
            if code.code.same(&presented) {
                found = Some(at);
            }
        }
        found.map(|at| state.codes.remove(at).viewer)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().sessions.len()
    }
}

impl std::fmt::Debug for PageSessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PageSessions(..)")
    }
}

/// The session's id in a request's cookies.
pub(super) fn session_cookie(headers: &HeaderMap) -> Option<&[u8]> {
    let cookies = headers.get_all(header::COOKIE).into_iter();
    let pairs = cookies.flat_map(|cookies| cookies.as_bytes().split(|byte| *byte == b';'));
    let named = |pair: &'_ [u8]| -> Option<usize> {
        let name = pair.iter().position(|byte| *byte == b'=')?;
        (pair.get(..name)? == COOKIE.as_bytes()).then_some(name + 1)
    };
    pairs.map(|pair| pair.trim_ascii()).find_map(|pair| named(pair).and_then(|at| pair.get(at..)))
}
