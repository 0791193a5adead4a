//! Every message and every address, with the id of somebody else's job, notebook or chunk.
//!
//! **Invariant:** the answer is the same as for an id that never was, and the other person's job goes on. A new message
//! without a case here does not compile, and a new address without one fails a test.

use crate::harness::{
    Broker, FakeProxy, FakeWorker, Rules, finished, output, outputs, started, state, submission,
};
use baton_broker::{Person, Role};
use baton_protocol::{
    AboutState, ChunkHash, FencingNumber, JobEvent, JobId, Manifest, NotebookId, Outcome,
    PROTOCOL_VERSION, Payload, Piece, Refusal, SavedState, SessionId, StateVersion, Submission,
    WorkerId, encode,
    proxy::{FromProxy, ToProxy},
    worker::{FromWorker, ToWorker},
};
use baton_transport::{ChunkClient, Connection};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

const COURSE: &str = "ml";

/// What an attacker may have heard of, or made up.
#[derive(Clone, Copy)]
struct Ids {
    job: JobId,
    closed: JobId,
    notebook: NotebookId,
    fencing: FencingNumber,
    chunk: ChunkHash,
}

impl Ids {
    fn made_up() -> Self {
        let job = JobId::random();
        Self {
            job,
            closed: JobId::random(),
            notebook: NotebookId::random(),
            fencing: 1,
            chunk: baton_chunks::hash(job.to_string().as_bytes()),
        }
    }

    /// The text without anything that tells these ids from others.
    fn masked(&self, text: &str) -> String {
        let names = [
            self.job.to_string(),
            self.closed.to_string(),
            self.notebook.to_string(),
            self.chunk.to_string(),
            letters(&self.chunk.0),
        ];
        names
            .iter()
            .fold(text.to_owned(), |text, name| text.replace(name, "ID"))
    }
}

/// A class in which Ada has a cell that runs, one that is over, and a chunk.
struct Class {
    broker: Broker,
    ada: FakeProxy,
    worker: FakeWorker,
    last: u64,
    ids: Ids,
}

impl Class {
    async fn start() -> Self {
        let person = |name: &str, course: &str, role| {
            let courses = [(course.to_owned(), role)].into();
            Person::new(name.to_owned(), name, false, courses).entry()
        };
        let people = [
            person("ada", COURSE, Role::Student),
            person("mallory", COURSE, Role::Student),
            person("trudy", "vision", Role::Staff),
            Person::new_worker("gpu-1".to_owned(), "gpu-1").entry(),
            Person::new_worker("gpu-2".to_owned(), "gpu-2").entry(),
        ];
        let broker = Broker::start_with(Rules {
            token: Some("sesame"),
            tcp: true,
            people: Some(people.concat()),
            ..Rules::default()
        })
        .await;
        let bytes = bytes::Bytes::from_static(b"what only Ada has");
        let chunk = baton_chunks::hash(&bytes);
        let chunk_client = ChunkClient::new(&broker.dial_as("ada")).unwrap();
        chunk_client.put(&[(chunk, bytes)]).await.unwrap();
        let chunk_client = chunk_client.of_owner("ada".to_owned(), Some(COURSE.to_owned()));

        let mut worker = FakeWorker::new(&broker.dial_as("gpu-1")).await;
        let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
        let closed = ada.submit().await;
        worker.run_to_end().await;
        ada.events_after(closed, 0).await;
        ada.say(FromProxy::Applied { job: closed }).await;
        let job = ada.submit().await;
        let (fencing, _) = worker.assignment().await;
        ada.assigned(job).await;
        worker.report(job, fencing, 1, vec![started()]).await;
        ada.event(job).await;
        let saved = state_of(job, chunk);
        chunk_client
            .save_state(&job.to_string(), &saved)
            .await
            .unwrap();
        let notebook = ada.notebook;
        Self {
            broker,
            ada,
            worker,
            last: 1,
            ids: Ids {
                job,
                closed,
                notebook,
                fencing,
                chunk,
            },
        }
    }

    /// Ada's cell prints a line, and she hears of nothing else.
    async fn goes_on(&mut self, after: &str) {
        let Ids { job, fencing, .. } = self.ids;
        self.last += 1;
        let line = vec![output(after)];
        self.worker.report(job, fencing, self.last, line).await;
        assert_eq!(outputs(&[self.ada.event(job).await]), [after]);
    }

    async fn ends(mut self) {
        let Ids { job, fencing, .. } = self.ids;
        let end = vec![finished(Outcome::Ok)];
        self.worker.report(job, fencing, self.last + 1, end).await;
        self.ada.events_after(job, self.last + 1).await;
    }
}

/// In the order of the type, so that a message without a case does not compile.
fn number_of(message: &FromProxy) -> usize {
    match message {
        FromProxy::Hello { .. } => 0,
        FromProxy::Submit(_) => 1,
        FromProxy::State { .. } => 2,
        FromProxy::Resume { .. } => 3,
        FromProxy::Cancel { .. } => 4,
        FromProxy::Input { .. } => 5,
        FromProxy::Files { .. } => 6,
        FromProxy::Names { .. } => 7,
        FromProxy::DeferredWanted { .. } => 8,
        FromProxy::Applied { .. } => 9,
        FromProxy::GivenUp { .. } => 10,
        // Names nothing: it is about the notebook that says it.
        FromProxy::Goodbye {} => 11,
    }
}

fn proxy_messages(ids: &Ids, job: JobId, own: NotebookId) -> Vec<FromProxy> {
    let submit = |notebook| {
        FromProxy::Submit(Submission {
            job,
            ..submission(notebook)
        })
    };
    vec![
        FromProxy::Hello {
            protocol_version: PROTOCOL_VERSION,
            notebook: ids.notebook,
            owner: "ada".to_owned(),
            course: None,
        },
        submit(own),
        submit(ids.notebook),
        FromProxy::State {
            job,
            state: state("another"),
        },
        FromProxy::Resume { job, after: 0 },
        FromProxy::Cancel { job },
        FromProxy::Input {
            job,
            question: 1,
            value: Some("theirs".to_owned()),
        },
        FromProxy::Files {
            job,
            question: 1,
            answer: Payload(Vec::new()),
        },
        FromProxy::Names {
            job,
            number: 1,
            state: state("another"),
        },
        FromProxy::DeferredWanted { job },
        FromProxy::Applied { job },
        FromProxy::GivenUp {
            job,
            outcome: Some(Outcome::Cancelled),
        },
        FromProxy::GivenUp { job, outcome: None },
        FromProxy::Goodbye {},
    ]
}

#[tokio::test]
async fn no_message_of_a_notebook_reaches_the_job_of_another() {
    let mut class = Class::start().await;
    for token in ["mallory", "trudy"] {
        for job in [class.ids.job, class.ids.closed] {
            let mut mallory = FakeProxy::new(&class.broker.dial_as(token)).await;
            let messages = proxy_messages(&class.ids, job, mallory.notebook);
            let numbers: BTreeSet<usize> = messages.iter().map(number_of).collect();
            assert_eq!(numbers, (0..=11).collect());
            for message in messages {
                let what = format!("{token}: {message:?}");
                let number = number_of(&message);
                mallory.say(message).await;
                match number {
                    // The first hello counts.
                    0 => {}
                    11 => {
                        let notebook = mallory.notebook;
                        let end = ToWorker::EndSession { notebook };
                        assert_eq!(class.worker.next().await, end);
                    }
                    _ => assert_eq!(mallory.next().await, ToProxy::UnknownJob { job }, "{what}"),
                }
                class.goes_on(&what).await;
            }
            mallory.expect_silence().await;
        }
        let mut thief: Connection<ToProxy, FromProxy> =
            baton_transport::connect(&class.broker.dial_as(token), "/v1/proxy")
                .await
                .unwrap();
        let hello = proxy_messages(&class.ids, class.ids.job, class.ids.notebook).remove(0);
        thief.send(&hello).await.unwrap();
        let answer = thief.receive().await.unwrap();
        assert_eq!(answer, Some(ToProxy::Refused(Refusal::NotYours {})));
        class.goes_on("the hello of another notebook").await;
    }
    class.ends().await;
}

fn number_of_worker(message: &FromWorker) -> usize {
    match message {
        FromWorker::Hello { .. } => 0,
        FromWorker::Events { .. } => 1,
        FromWorker::Sessions { .. } => 2,
        FromWorker::Load { .. } => 3,
        // Name nothing.
        FromWorker::Failing { .. } => 4,
        FromWorker::Recovered {} => 5,
        FromWorker::Drain {} => 6,
    }
}

/// All but the hello, which opens the connection.
fn worker_messages(ids: &Ids) -> Vec<FromWorker> {
    let Ids { job, fencing, .. } = *ids;
    let events = |job, fencing, first| FromWorker::Events {
        job,
        fencing,
        first,
        events: vec![JobEvent::DeferredState {
            state: Some(state("theirs")),
            error: None,
        }],
    };
    vec![
        events(job, fencing, 2),
        events(job, fencing + 1, 1),
        events(ids.closed, fencing, 1),
        FromWorker::Sessions {
            warm: vec![ids.notebook],
            keeping: vec![ids.notebook],
        },
        FromWorker::Load {
            memory_bytes: 1,
            memory_total_bytes: 1,
            jobs: vec![(job, u64::MAX)],
            gpus: Vec::new(),
        },
        FromWorker::Failing {
            why: "no disk".to_owned(),
        },
        FromWorker::Recovered {},
        FromWorker::Drain {},
    ]
}

#[tokio::test]
async fn no_message_of_a_worker_reaches_the_job_of_another() {
    let mut class = Class::start().await;
    let Ids { job, fencing, .. } = class.ids;
    let mut other = FakeWorker::of(
        &class.broker.dial_as("gpu-2"),
        WorkerId::random(),
        4,
        &[class.ids.notebook],
        &[(job, fencing)],
    )
    .await;
    assert_eq!(other.next().await, ToWorker::Revoke { job, fencing });
    class.goes_on("a hello with a foreign assignment").await;
    let messages = worker_messages(&class.ids);
    let numbers: BTreeSet<usize> = messages.iter().map(number_of_worker).collect();
    assert_eq!(numbers, (1..=6).collect());
    for message in messages {
        let what = format!("{message:?}");
        let revoked = match &message {
            FromWorker::Events { job, fencing, .. } => Some((*job, *fencing)),
            _ => None,
        };
        other.say(message).await;
        if let Some((job, fencing)) = revoked {
            let revoke = ToWorker::Revoke { job, fencing };
            assert_eq!(other.next().await, revoke, "{what}");
        }
        class.goes_on(&what).await;
    }
    class.ends().await;
}

struct Request {
    method: reqwest::Method,
    path: String,
    body: Vec<u8>,
}

fn get(path: String) -> Request {
    Request {
        method: reqwest::Method::GET,
        path,
        body: Vec::new(),
    }
}

fn post(path: String, body: impl Into<Vec<u8>>) -> Request {
    Request {
        method: reqwest::Method::POST,
        path,
        body: body.into(),
    }
}

/// Of a notebook with one variable, in this chunk.
fn state_of(job: JobId, chunk: ChunkHash) -> SavedState {
    SavedState {
        about: AboutState {
            variables: vec![job.to_string()],
            ..AboutState::default()
        },
        manifest: Manifest {
            base: StateVersion {
                session: SessionId::random(),
                messages: 0,
            },
            stream: vec![Piece::Stored {
                hash: chunk,
                bytes: 18,
            }],
            segments: Vec::new(),
            dropped_segments: Vec::new(),
        },
    }
}

/// What may be asked at each address, with these ids. An address without ids is asked for as it is.
fn requests(ids: &Ids) -> BTreeMap<&'static str, Vec<Request>> {
    let Ids {
        job,
        closed,
        notebook,
        chunk,
        ..
    } = ids;
    let plain = |path: &'static str| (path, vec![get(path.to_owned())]);
    let of_job = |path: &'static str, body: Option<&str>| {
        let requests = [job, closed].map(|job| {
            let path = path.replace("{job}", &job.to_string());
            body.map_or_else(|| get(path.clone()), |body| post(path.clone(), body))
        });
        (path, requests.into())
    };
    let of_state = |method, body| Request {
        method,
        path: format!("/v1/states/{job}"),
        body,
    };
    let names = encode(&vec![*chunk]);
    let reason = Some(r#"{"reason": "mine now"}"#);
    let forms = ["cancel", "hold", "release", "move_to_front"].map(|action| {
        let form = format!("action={action}&job={job}&reason=x&key=KEY");
        post("/act".to_owned(), form)
    });
    BTreeMap::from([
        plain("/"),
        plain("/audit"),
        plain("/capacity"),
        ("/course", vec![get(format!("/course?name={COURSE}"))]),
        plain("/courses"),
        plain("/health/live"),
        plain("/health/ready"),
        (
            "/job",
            vec![
                get(format!("/job?id={job}")),
                get(format!("/job?id={closed}")),
            ],
        ),
        (
            "/live",
            vec![
                get("/live?of=now".to_owned()),
                get("/live?of=workers".to_owned()),
                get("/live?of=capacity".to_owned()),
                get(format!("/live?of=job&id={job}")),
            ],
        ),
        plain("/metrics"),
        plain("/oauth_callback"),
        plain("/people"),
        plain("/people.csv"),
        (
            "/sign-in",
            vec![
                get("/sign-in".to_owned()),
                post("/sign-in".to_owned(), "token=ada-tokem"),
            ],
        ),
        plain("/signed-out"),
        plain("/status"),
        plain("/version"),
        plain("/workers"),
        ("/act", forms.into()),
        ("/sign-out", vec![post("/sign-out".to_owned(), "")]),
        ("/v1/audit", vec![get(format!("/v1/audit?course={COURSE}"))]),
        (
            "/v1/chunks",
            vec![Request {
                method: reqwest::Method::PUT,
                path: format!("/v1/chunks?notebook={notebook}"),
                body: Vec::new(),
            }],
        ),
        (
            "/v1/chunks/get",
            vec![post("/v1/chunks/get".to_owned(), names.clone())],
        ),
        (
            "/v1/chunks/missing",
            vec![post("/v1/chunks/missing".to_owned(), names)],
        ),
        plain("/v1/courses"),
        (
            "/v1/courses/{course}",
            vec![post(format!("/v1/courses/{COURSE}"), "{}")],
        ),
        (
            "/v1/courses/{course}/files",
            vec![get(format!("/v1/courses/{COURSE}/files"))],
        ),
        (
            "/v1/courses/{course}/files/withdraw",
            vec![post(
                format!("/v1/courses/{COURSE}/files/withdraw"),
                r#"{"name": "data.csv"}"#,
            )],
        ),
        (
            "/v1/history",
            vec![get(format!("/v1/history?course={COURSE}"))],
        ),
        (
            "/v1/jobs",
            vec![
                get("/v1/jobs".to_owned()),
                get(format!("/v1/jobs?ends_with={job}")),
                get("/v1/jobs?person=ada".to_owned()),
            ],
        ),
        of_job("/v1/jobs/{job}", None),
        of_job("/v1/jobs/{job}/explanation", None),
        of_job("/v1/jobs/{job}/cancel", Some("{}")),
        of_job("/v1/jobs/{job}/front", reason),
        of_job("/v1/jobs/{job}/hold", reason),
        of_job("/v1/jobs/{job}/release", Some("{}")),
        plain("/v1/openapi.json"),
        plain("/v1/states"),
        (
            "/v1/states/{name}",
            vec![
                get(format!("/v1/states/{job}")),
                get(format!("/v1/states/{job}?owner=ada&course={COURSE}")),
                get(format!("/v1/states/{job}?notebook={notebook}")),
                of_state(reqwest::Method::PUT, encode(&state_of(*job, *chunk))),
                of_state(reqwest::Method::DELETE, Vec::new()),
            ],
        ),
        (
            "/v1/notebook-token",
            vec![post("/v1/notebook-token".to_owned(), "")],
        ),
        plain("/v1/pools"),
        (
            "/v1/pools/{pool}/resume",
            vec![post("/v1/pools/slurm-gpu/resume".to_owned(), "{}")],
        ),
        (
            "/v1/pools/{pool}/test",
            vec![post("/v1/pools/slurm-gpu/test".to_owned(), "")],
        ),
        ("/v1/proxy", vec![get("/v1/proxy".to_owned())]),
        ("/v1/usage", vec![get("/v1/usage?person=ada".to_owned())]),
        ("/v1/worker", vec![get("/v1/worker".to_owned())]),
        plain("/v1/workers"),
        (
            "/v1/workers/{worker}/drain",
            vec![post("/v1/workers/cpu-0/drain".to_owned(), "{}")],
        ),
        (
            "/v1/workers/{worker}/resume",
            vec![post("/v1/workers/cpu-0/resume".to_owned(), "{}")],
        ),
    ])
}

/// Every address that the broker's sources or its document of the API name.
async fn addresses(broker: &Broker) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for folder in ["http", "page", "api"] {
        for entry in fs::read_dir(sources.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let Ok(text) = fs::read_to_string(&path) else {
                continue;
            };
            let program = text.split("#[cfg(test)]").next().unwrap_or_default();
            for call in program.split(".route(").skip(1) {
                let Some(address) = call.trim_start().strip_prefix('"') else {
                    continue;
                };
                found.extend(address.split('"').next().map(str::to_owned));
            }
        }
    }
    let document: serde_json::Value =
        serde_json::from_str(&broker.get("/v1/openapi.json").await).unwrap();
    found.extend(document["paths"].as_object().unwrap().keys().cloned());
    // The answer to an address that is none.
    found.remove("/v1/{*path}");
    found
}

/// Status and text of the answer; of one that goes on for ever, its first part.
async fn ask(broker: &Broker, token: Option<&str>, key: &str, request: Request) -> String {
    let client = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap();
    let url = format!("{}{}", broker.dial.address, request.path);
    let mut sent = client.request(request.method, url);
    if let Some(token) = token {
        sent = sent.bearer_auth(token);
    }
    let body = match String::from_utf8(request.body) {
        Ok(text) => text.replace("KEY", key).into_bytes(),
        Err(names) => names.into_bytes(),
    };
    let kind = match (body.first(), request.path.as_str()) {
        (Some(b'{'), _) => "application/json",
        (_, "/act" | "/sign-in" | "/sign-out") => "application/x-www-form-urlencoded",
        _ => "application/octet-stream",
    };
    let sent = sent.header("content-type", kind).body(body).send();
    let mut response = sent.await.unwrap();
    let status = response.status();
    let live = request.path.starts_with("/live") && status.is_success();
    let text = match live {
        true => response.chunk().await.unwrap().unwrap_or_default(),
        false => response.bytes().await.unwrap(),
    };
    format!("{status}\n{}", letters(&text))
}

/// One for each byte, so that an answer in binary is compared, too.
fn letters(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

/// What the forms of this caller carry.
async fn form_key(broker: &Broker, token: Option<&str>) -> String {
    let page = ask(broker, token, "", get("/".to_owned())).await;
    let key = page.split("name=\"key\" value=\"").nth(1);
    let key = key.and_then(|rest| rest.split('"').next());
    key.unwrap_or_default().to_owned()
}

#[tokio::test]
async fn no_address_tells_of_or_touches_the_job_of_another() {
    let mut class = Class::start().await;
    let known = addresses(&class.broker).await;
    let made_up = Ids::made_up();
    let cases: BTreeSet<String> = requests(&made_up).keys().map(|&path| path.into()).collect();
    assert_eq!(known, cases, "an address without a case, or the reverse");

    for token in [Some("mallory"), Some("trudy"), Some("gpu-2"), None] {
        let key = form_key(&class.broker, token).await;
        let (theirs, nobodys) = (requests(&class.ids), requests(&made_up));
        for ((path, theirs), (_, nobodys)) in theirs.into_iter().zip(nobodys) {
            for (theirs, nobodys) in theirs.into_iter().zip(nobodys) {
                let what = format!("{token:?}: {} {}", theirs.method, theirs.path);
                let names_an_id = theirs.path != nobodys.path || theirs.body != nobodys.body;
                let of_theirs = ask(&class.broker, token, &key, theirs).await;
                if names_an_id {
                    let of_nobodys = ask(&class.broker, token, &key, nobodys).await;
                    let theirs = class.ids.masked(&of_theirs);
                    assert_eq!(theirs, made_up.masked(&of_nobodys), "{what}");
                } else {
                    let masked = class.ids.masked(&of_theirs);
                    assert_eq!(masked, of_theirs, "{what} tells an id");
                }
                class.goes_on(path).await;
            }
        }
    }
    class.ends().await;
}
