// Package webhook announces the end of a job to its callback_urls by Standard
// Webhooks 1.0: signed, retried over days, and never to a forbidden address.
//
//	Delivery                  Enter              Send
//	   │     ┌────────────┐ ┌──────────────────┐ ┌────────────────┐
//	   └───▶ │ Dispatcher │▶│ Gate             │▶│ Sender         │
//	         │            │ │ bound and circuit│ │ sign, transport│──▶ receiver
//	   ┌──── │            │ │ of tenant, host  │ │ Guard at dial  │
//	   ▼     └────────────┘ └──────────────────┘ └────────────────┘
//	Delivery        │              │                    │
//	   ▲            ▼              │ not now            │
//	   └───── Policy.Apply ◀───────┴──── Result ◀───────┘
//
// # Guarantees
//
// A webhook is sent at least once until it is delivered, or until the schedule of its
// [Policy] is exhausted. All attempts carry the same webhook-id and the same bytes; each
// has its own timestamp and signature. A receiver that remembers ids sees each event once.
//
// The outcome of an attempt is a value, a [Result]:
//
//	2xx                        delivered     DELIVERED
//	410                        gone          GONE, no further attempt
//	429, 503 with Retry-After  retry_after   PENDING, not before both say so
//	any other answer, or none  failed        PENDING, EXHAUSTED after the last
//	URL or address forbidden   refused       REFUSED
//	the process stops          interrupted   PENDING, due at once, not counted
//	host busy or in trouble    deferred      PENDING at its turn, not counted
//
// [Policy], which is pure, decides the next state. The caller stores the [Delivery];
// the package stores nothing. A replay makes a delivery pending again with no
// attempts.
//
// # Where webhooks go
//
// The client that submits a job chooses the URL, and thereby what the server calls from
// inside its network. Checking the URL alone does not help: a name may resolve to any
// address, and to another one the next moment. So the [Guard] checks twice. On submission,
// [Guard.CheckURL] refuses obviously wrong URLs early. On each connection the guard checks
// the address that is about to be dialed, after the last name look-up; that is the check
// that counts. Only ordinary internet addresses pass, unless the operator has allowed other
// networks.
//
// The sender follows no redirects, keeps no cookies and uses no proxy of the
// environment; it cuts answers off after a few kilobytes and never shows them. The
// reasons in a Result are fixed texts of this package.
//
// # Isolation of receivers
//
// One receiver that hangs must not occupy all workers, nor hold back another tenant's
// webhooks on the same host. The [Gate] bounds the attempts under way of each tenant to
// each host, and opens a circuit when a host stops answering a tenant: its due deliveries
// are deferred, spend no attempt and say why they wait. A receiver's answer about one
// URL, such as 404 or 500, says nothing against its host. Deferred attempts get turns at
// the pace of the host, so that a backlog is not tried and deferred over and over. No
// tenant has more attempts under way, to however many hosts, than stay free for others.
//
// # Secrets
//
// A receiver that can verify can also sign. So two tenants should not share a secret:
// [TenantSecrets] derives one for each tenant from the operator's secret. With two
// secrets configured, everything is signed with both, and receivers can switch at any
// time.
//
// Source: Standard Webhooks 1.0.
package webhook
