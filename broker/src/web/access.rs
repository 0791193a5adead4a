//! Knows who a caller is, by the credential that a request shows.
//!
//! Programs send a token as `Authorization: Bearer`. People sign in on a page, with `/?token=…` or
//! with the JupyterHub ([`sign_in`](super::sign_in)). Each of these gives the browser a [`SignIn`](crate::sign_ins)
//! in a cookie that scripts cannot read. The broker's own token permits everything. Tokens of
//! people and of the Hub permit what their roles allow, and tokens of workers what a worker needs.
//! On a Unix socket pages need no token, because only this user can connect.
//!
//! In: a token or the id of a sign-in. Out: a [`Caller`].

use super::{
    ApiError, Limits,
    attempts::{self, Attempts},
};
use crate::{
    hub::Hub,
    people::{People, hash_of},
    pools,
    sign_ins::{self, Grant, SignIn, SignIns},
    watched::Watched,
};
use axum::http::{Extensions, HeaderMap, HeaderValue, header};
use baton_broker_queue::Identity;
use baton_broker_store::Store;
use jiff::Timestamp;
use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

/// The prefix of notebook tokens, so that other tokens are not looked up among the sign-ins.
const NOTEBOOK_PREFIX: &str = "baton-notebook-";

/// How often the credential of an open connection is checked again. So a connection outlives its
/// sign-in or token by at most this time.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Not `Debug`, because it holds a secret.
#[derive(Clone)]
pub(crate) struct Access {
    /// The hash of the broker's own token.
    token_hash: Option<String>,
    /// By the hash of the token.
    programs: Arc<HashMap<String, Identity>>,
    people: Option<Arc<Watched<People>>>,
    /// Contains the tokens of pool workers.
    store: Store,
    pub(super) hub: Option<Arc<Hub>>,
    pub(super) sign_ins: Arc<SignIns>,
    pub(super) attempts: Arc<Attempts>,
    /// Only the user who runs the broker can connect.
    only_this_user: bool,
}

/// Who sent a request, and with which credential. Not `Debug`, because it holds a secret.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) identity: Identity,
    credential: Option<Credential>,
    /// Nothing but the broker's own token exists, so all jobs belong to the caller.
    alone: bool,
}

/// What a caller showed. Not `Debug`, because it holds a secret.
#[derive(Clone)]
enum Credential {
    /// The hash of a token of the broker or of the people file.
    Token(String),
    /// The hash of a pool worker's token.
    Pool(String),
    /// A token that the Hub made for this service.
    Hub(String),
    /// The id of a sign-in.
    SignIn(String),
}

impl Caller {
    /// A secret in each form. Only the broker's own pages can read it, so no other page can send the form.
    pub(crate) fn form_key(&self) -> String {
        let secret = match &self.credential {
            Some(
                Credential::Token(secret)
                | Credential::Pool(secret)
                | Credential::Hub(secret)
                | Credential::SignIn(secret),
            ) => secret,
            None => "",
        };
        hash_of(&format!("baton form {secret}"))
    }

    /// Whether the caller owns this person's job. Without personal tokens, all callers are the same person.
    pub(crate) fn is_owner(&self, owner: &str) -> bool {
        self.identity
            .person()
            .map_or(self.alone, |person| person == owner)
    }

    pub(crate) fn is_form_key(&self, given: &str) -> bool {
        is_same(given, &self.form_key())
    }
}

impl Access {
    pub(crate) fn new(
        token: Option<&str>,
        programs: HashMap<String, Identity>,
        people: Option<Arc<Watched<People>>>,
        store: Store,
        hub: Option<Arc<Hub>>,
        sign_ins: Arc<SignIns>,
    ) -> Self {
        Self {
            token_hash: token.map(hash_of),
            programs: Arc::new(programs),
            people,
            store,
            hub,
            sign_ins,
            attempts: Arc::new(Attempts::new()),
            only_this_user: false,
        }
    }

    /// The same for a socket that only the broker's user can open.
    pub(crate) fn of_this_user(&self) -> Self {
        Self {
            only_this_user: true,
            ..self.clone()
        }
    }

    /// If no tokens exist, every caller is admitted.
    async fn admit(
        &self,
        given: Option<Credential>,
        open: bool,
        from: Option<IpAddr>,
    ) -> Result<Option<Caller>, ApiError> {
        match given {
            _ if self.is_open() => Ok(Some(self.caller_without_token())),
            Some(credential) => self.caller(credential, from).await,
            None => Ok(open.then(|| self.caller_without_token())),
        }
    }

    /// Whether no tokens exist at all, so that there is nothing to sign in with.
    pub(super) fn is_open(&self) -> bool {
        self.token_hash.is_none() && !self.knows_people()
    }

    fn knows_people(&self) -> bool {
        self.people.is_some() || self.hub.is_some()
    }

    /// Whether this can be the name of a person. A Hub may know people who have not signed in yet.
    pub(crate) fn may_know(&self, person: &str) -> bool {
        match &self.people {
            Some(people) if self.hub.is_none() => people.newest().has_person(person),
            _ => true,
        }
    }

    /// Whether this person's cells can be in the course. A Hub may know people who have not signed in yet.
    pub(crate) fn may_be_in_course(&self, person: &str, course: &str) -> bool {
        match &self.people {
            Some(people) if self.hub.is_none() => people.newest().is_in_course(person, course),
            _ => true,
        }
    }

    fn caller_without_token(&self) -> Caller {
        Caller {
            identity: Identity::operator(),
            credential: None,
            alone: !self.knows_people(),
        }
    }

    async fn caller(
        &self,
        credential: Credential,
        from: Option<IpAddr>,
    ) -> Result<Option<Caller>, ApiError> {
        let identity = self.identity(&credential, from).await?;
        Ok(identity.map(|identity| Caller {
            identity,
            credential: Some(credential),
            alone: !self.knows_people(),
        }))
    }

    /// `from`: the caller's address, which limits queries to the Hub.
    async fn identity(
        &self,
        credential: &Credential,
        from: Option<IpAddr>,
    ) -> Result<Option<Identity>, ApiError> {
        let of_hub = async |token: &str| match &self.hub {
            Some(hub) => Ok(hub.of_token(token, from).await?),
            None => Ok(None),
        };
        match credential {
            Credential::Token(hash) => Ok(self.of_hash(hash)),
            Credential::Pool(hash) => Ok(self
                .store
                .pools()
                .worker_with_token(hash)
                .await?
                .map(Identity::of_worker)),
            Credential::Hub(token) => of_hub(token).await,
            Credential::SignIn(id) => match self.sign_ins.of(id).await? {
                Some(Grant::Token { token_hash, .. }) => Ok(self.of_hash(&token_hash)),
                Some(Grant::Hub { token, .. }) => of_hub(&token).await,
                Some(Grant::Notebook { person, courses }) if self.hub.is_some() => {
                    Ok(Some(Identity::of_notebook(person, courses)))
                }
                Some(Grant::Notebook { .. }) | None => Ok(None),
            },
        }
    }

    fn of_hash(&self, hash: &str) -> Option<Identity> {
        let own = self.token_hash.as_deref();
        if own.is_some_and(|own| is_same(hash, own)) {
            return Some(Identity::operator());
        }
        if let Some(program) = self.programs.get(hash) {
            return Some(program.clone());
        }
        let people = self.people.as_ref()?.newest();
        people.of_hash(hash, Timestamp::now())
    }

    /// Checks the broker's own tokens first, so that these do not depend on the Hub.
    fn credential(&self, token: &str) -> Credential {
        if let Some(id) = token.strip_prefix(NOTEBOOK_PREFIX) {
            return Credential::SignIn(id.to_owned());
        }
        let hash = hash_of(token);
        if token.starts_with(pools::TOKEN_PREFIX) {
            return Credential::Pool(hash);
        }
        match self.hub {
            Some(_) if self.of_hash(&hash).is_none() => Credential::Hub(token.to_owned()),
            _ => Credential::Token(hash),
        }
    }

    /// Signs in the browser of a person who showed a token. Returns `None` if the token is invalid.
    pub(super) async fn sign_in(
        &self,
        token: &str,
        limits: &Limits,
        from: Option<IpAddr>,
    ) -> Result<Option<SignIn>, ApiError> {
        let credential = self.credential(token);
        let Some(identity) = self.identity(&credential, from).await? else {
            return Ok(None);
        };
        if !identity.may_be_person() {
            return Err(not_a_person(&identity));
        }
        limits.admit(&identity)?;
        let person = identity.person().unwrap_or_default().to_owned();
        let grant = match credential {
            Credential::Token(token_hash) => Grant::Token { person, token_hash },
            Credential::Hub(token) => Grant::Hub { person, token },
            // The credential of a notebook or a worker is not for browsers.
            Credential::SignIn(_) | Credential::Pool(_) => return Ok(None),
        };
        Ok(Some(self.sign_ins.begin(grant).await?))
    }

    /// A token for the notebooks of the person whose notebook server has `token`. `None` if it is invalid.
    pub(super) async fn for_notebook(
        &self,
        token: &str,
        limits: &Limits,
        from: Option<IpAddr>,
    ) -> Result<Option<(String, Duration)>, ApiError> {
        if self.is_open() {
            // Any token is accepted.
            return Ok(Some((NOTEBOOK_PREFIX.to_owned(), sign_ins::NOTEBOOK)));
        }
        let Some(hub) = &self.hub else {
            return Ok(None);
        };
        let Some(identity) = hub.of_server(token, from).await? else {
            return Ok(None);
        };
        limits.admit(&identity)?;
        let grant = Grant::Notebook {
            person: identity.person().unwrap_or_default().to_owned(),
            courses: identity.courses().map(str::to_owned).collect(),
        };
        let SignIn { id, lifetime } = self.sign_ins.begin(grant).await?;
        Ok(Some((format!("{NOTEBOOK_PREFIX}{id}"), lifetime)))
    }

    /// Ends the sign-in, and forgets the Hub's answer about its token.
    pub(super) async fn sign_out(&self, caller: &Caller) -> Result<(), ApiError> {
        let Some(Credential::SignIn(id)) = &caller.credential else {
            return Ok(());
        };
        if let (Some(Grant::Hub { token, .. }), Some(hub)) =
            (self.sign_ins.of(id).await?, &self.hub)
        {
            hub.forget(&token);
        }
        Ok(self.sign_ins.end(id).await?)
    }

    /// Waits until the caller's credential has another meaning than at the time of the request. If
    /// the Hub or the database does not answer, that counts as no change.
    pub(crate) async fn until_changed(&self, caller: &Caller) {
        let Some(credential) = caller.credential.as_ref() else {
            return std::future::pending().await;
        };
        let look_every = match credential {
            Credential::Hub(_) => self.hub.as_ref().map(|hub| hub.remembered()),
            Credential::Token(_) | Credential::Pool(_) | Credential::SignIn(_) => Some(LOOK_EVERY),
        };
        let mut file = self.people.as_ref().map(|people| people.subscribe());
        loop {
            if let Ok(now) = self.identity(credential, None).await
                && now.as_ref() != Some(&caller.identity)
            {
                return;
            }
            let file_changes = async {
                match &mut file {
                    Some(file) => file.changed().await,
                    None => std::future::pending().await,
                }
            };
            let time_to_look = async {
                match look_every {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // `self` holds the sender of these changes, so it is not closed before this ends.
                changed = file_changes => if changed.is_err() { return },
                () = time_to_look => {}
            }
        }
    }

    /// Whether the caller's person was in the people file and is no longer.
    pub(crate) fn is_removed(&self, caller: &Caller) -> bool {
        let is_of_file = matches!(caller.credential, Some(Credential::Token(_)));
        let people = self.people.as_ref().filter(|_| is_of_file);
        let person = caller.identity.person();
        people
            .is_some_and(|people| person.is_some_and(|person| !people.newest().has_person(person)))
    }

    /// The caller of a program's request, by the token that the program sent.
    pub(super) async fn program(
        &self,
        given: Option<&str>,
        from: (&Extensions, &HeaderMap),
    ) -> Result<Caller, ApiError> {
        let open = self.only_this_user && self.token_hash.is_none();
        self.authorized(given, open, from).await
    }

    /// The caller of the chunk listener, which passes on the authorization that it received.
    pub(super) async fn of_authorization(
        &self,
        given: Option<&HeaderValue>,
        from: (&Extensions, &HeaderMap),
    ) -> Result<Caller, ApiError> {
        self.authorized(given.and_then(token_of), false, from).await
    }

    /// Who asks for a page, by a token.
    pub(super) async fn person(
        &self,
        given: Option<&str>,
        from: (&Extensions, &HeaderMap),
    ) -> Result<Caller, ApiError> {
        self.authorized(given, self.only_this_user, from).await
    }

    /// Who asks for a page, by the id of a sign-in. `None` if it has ended.
    pub(super) async fn signed_in(
        &self,
        id: String,
        from: (&Extensions, &HeaderMap),
    ) -> Result<Option<Caller>, ApiError> {
        let credential = Some(Credential::SignIn(id));
        let address = attempts::address(from.0, from.1);
        self.admit(credential, self.only_this_user, address).await
    }

    async fn authorized(
        &self,
        given: Option<&str>,
        open: bool,
        from: (&Extensions, &HeaderMap),
    ) -> Result<Caller, ApiError> {
        let credential = given.map(|token| self.credential(token));
        let address = attempts::address(from.0, from.1);
        match self.admit(credential, open, address).await? {
            Some(caller) => Ok(caller),
            None => {
                if given.is_some() {
                    self.attempts.failed(from.0, from.1);
                }
                Err(ApiError::Token)
            }
        }
    }
}

pub(super) fn not_a_person(identity: &Identity) -> ApiError {
    match identity.joins() {
        Some(pool) => ApiError::OnlyJoins {
            pool: pool.to_owned(),
        },
        None if identity.may_monitor() => ApiError::OnlyReads,
        None => ApiError::NotAPerson,
    }
}

pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    token_of(headers.get(header::AUTHORIZATION)?)
}

fn token_of(authorization: &HeaderValue) -> Option<&str> {
    authorization.to_str().ok()?.strip_prefix("Bearer ")
}

/// Whether one of the broker's own pages sent the form, according to the browser.
pub(crate) fn is_from_here(headers: &HeaderMap) -> bool {
    let from = headers.get("sec-fetch-site");
    from.is_none_or(|from| from == "same-origin")
}

/// Compares in constant time.
pub(super) fn is_same(given: &str, token: &str) -> bool {
    let difference = given
        .bytes()
        .zip(token.bytes())
        .fold(0, |difference, (one, other)| difference | (one ^ other));
    given.len() == token.len() && std::hint::black_box(difference) == 0
}
