// Package webhooks announces the end of jobs to their callback_urls, as Standard
// Webhooks 1.0 describes it: signed, tried again over days, and never to where
// the server itself must not be made to go.
//
//	          Take                     Enter              Send
//	┌───────┐ claim ┌────────┐ ┌──────────────────┐ ┌────────────────┐
//	│ Queue │ ────▶ │ Runner │▶│ Gate             │▶│ Sender         │
//	│ (the  │       │        │ │ bound and circuit│ │ sign, transport│──▶ receiver
//	│ store)│ ◀──── │        │ │ of each host     │ │ Guard at dial  │
//	└───────┘ Settle└────────┘ └──────────────────┘ └────────────────┘
//	            ▲       │              │                    │
//	            │       ▼              │ not now            │
//	            └─── Policy.Apply ◀────┴──── Result ◀───────┘
//
// # What is promised
//
// A webhook is sent at least once until it is delivered, or until the schedule of
// its [Policy] is exhausted. Attempts carry the same webhook-id and the same
// bytes, and a timestamp and signature of their own; a receiver that remembers
// ids sees each event once. [Verify] is the receiver's side, for those who write
// one in Go, and for tests.
//
// What became of an attempt is a value, a [Result]:
//
//	2xx                        delivered     DELIVERED
//	410                        gone          GONE, no attempt more
//	429, 503 with Retry-After  retry_after   PENDING, not before both say so
//	any other answer, or none  failed        PENDING, EXHAUSTED after the last
//	URL or address forbidden   refused       REFUSED
//	the process stops          interrupted   PENDING, due at once, not counted
//	host busy or in trouble    deferred      PENDING, not counted
//
// Which state follows is decided by [Policy], which is pure. What is kept is a
// [Delivery]; the package stores nothing. To list what was given up, and to replay
// it, is the business of the store behind [Queue]. A replay is a delivery that is
// pending again with no attempts.
//
// # Where webhooks go
//
// Whoever may submit a job chooses the URL, and so chooses whom the server calls
// from inside its network. A check of the URL alone does not help: a name may lead
// anywhere, and elsewhere the next moment. So the [Guard] decides twice. At the
// submit, [Guard.CheckURL] refuses what can be seen to be wrong, to be helpful.
// At each connection it is asked about the very address that is about to be
// dialed, after the last look-up; that is the check that counts, and no answer of
// a name server comes behind it. Only plain parts of the internet pass, unless the
// operator has named other networks.
//
// Redirects are not followed, cookies not kept, proxies of the environment not
// used; answers are cut off after a few kilobytes and never shown to anybody. The
// reasons in a Result are the package's own words.
//
// # Keeping receivers apart
//
// One receiver that hangs must not take all workers with it. The [Gate] bounds
// the attempts under way for each host, and opens a circuit when a host stops
// answering: what is due there is put off and spends no attempt. A receiver's
// answer about one URL, such as 404 or 500, says nothing against its host. Those
// who are put off get turns at the pace of the host, so that a backlog is not
// taken up and put back over and over.
//
// # Secrets
//
// A receiver that can verify can also sign. So two tenants should not share a
// secret: [TenantSecrets] derives each one's own from what the operator
// configured. With two configured, everything is signed twice, and receivers
// change over when they like.
//
// Source: Standard Webhooks 1.0.
package webhooks
