package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/lucius-project/lucius/pkg/admission"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/inbox"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/marks"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
	"github.com/lucius-project/lucius/pkg/routing"
	"github.com/lucius-project/lucius/pkg/schedules"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/webhook"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// Server is a Lucius server. It serves the API as an [http.Handler], and [Server.Run] does
// the background work.
type Server struct {
	cfg    Config
	log    *slog.Logger
	meters *meters
	clock  *clockCheck

	looks   *semaphore.Weighted // looks at lines that no caller waits for
	handoff *outbox.Handoff     // directives on their way from a commit to the relay
	mirror  *workqueue.Mirror   // the head of the ready index
	ended   search.Ended
	uses    httpapi.UseCases
	bus     *bus
	relay   *outbox.Relay
	// submitted reads the commands that applications submit in transactions; nil without
	// an inbox.
	submitted *inbox.Reader
	// illegal receives the first illegal transition of the relay.
	illegal chan *seqledger.IllegalTransitionError

	sweeper   *background.Sweeper
	dates     *background.Sweeper
	cron      *background.Cron
	retention *background.Retention
	bulk      *background.Bulk
	webhooks  *background.Webhooks
	guard     *webhook.Guard
	closeHTTP func() // closes the sender of webhooks

	api      *httpapi.Server
	underway atomic.Int64 // requests in progress
}

// Open assembles a server on an open store. The error names the part or the field at fault;
// to try again, use a new [Config.Registry]. No background work runs before [Server.Run].
func Open(ctx context.Context, cfg Config) (*Server, error) {
	if err := cfg.withDefaults(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, log: cfg.Logger, meters: newMeters(cfg.Registry), clock: newClockCheck(cfg.Store, cfg.ClockTolerance, cfg.Logger),
		looks: semaphore.NewWeighted(maxLooks), handoff: outbox.NewHandoff(handoffSize), mirror: workqueue.NewMirror(0),
		closeHTTP: func() {}, illegal: make(chan *seqledger.IllegalTransitionError, 1),
	}
	s.uses.Backup, s.uses.Protocols = cfg.HTTP.Backup, cfg.Protocols
	for _, open := range []func(context.Context) error{
		s.openLedger, s.openGate, s.openQueue, s.openCounts, s.openBus, s.openCommands,
		s.openUpkeep, s.openWebhooks, s.openRelay, s.openInbox, s.openAPI,
	} {
		if err := open(ctx); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// UseCases returns the use cases behind the API. Run does not wait for direct calls of them,
// so let those end before Run does.
func (s *Server) UseCases() httpapi.UseCases { return s.uses }

// Relay returns the relay.
func (s *Server) Relay() *outbox.Relay { return s.relay }

// Reload makes all watchers load their files, changed or not.
func (s *Server) Reload() {
	for _, watcher := range s.cfg.Watchers {
		watcher.Ask()
	}
}

// handoffSize is the most directives in the handoff to the relay, which finds any others in the
// dispatch schedule.
const handoffSize = 8192

// openLedger opens the ledger, and the callbacks that use it.
func (s *Server) openLedger(ctx context.Context) (err error) {
	settings := s.cfg.Ledger
	settings.Store, settings.Hold, settings.Bus = s.cfg.Store, s.cfg.PublishTimeout*3/2, statemachine.BusQueue
	if s.cfg.OpenBus != nil {
		settings.Bus = statemachine.BusServiceBus
	}
	if _, several := tablestore.As[tablestore.Notifier](s.cfg.Store); several { // Such a store notifies other processes of its writes.
		settings.Shared = true
	}
	if s.cfg.has(RoleRelay) {
		settings.Handoff = s.handoff // Without a handoff, rows are due for the relays of other processes at once.
	}
	settings.Ready, settings.Taker = s.mirror.Ready, s.mirror.Taker
	settings.Freed = func(slots []statemachine.RunSlot) { s.uses.Gate.Freed(slots) }
	settings.Held = func(target statemachine.Target) bool { return s.uses.Gate.HoldsNew(target) }
	settings.Ended = func(job *statemachine.Job) {
		s.ended.Tell(job)
		s.webhooks.Offer(job)
	}
	settings.Observe = s.observe
	settings.Later = s.look
	settings.Looked = func(outcome ledger.LookOutcome, _ error) { s.meters.looks.WithLabelValues(string(outcome)).Inc() }
	settings.Unsure = func() { s.uses.Counts.Unsure() }
	if s.cfg.Tracer != nil {
		settings.Sample = s.cfg.Tracer.Sample
	}
	if s.uses.Ledger, err = ledger.Open(ctx, settings); err != nil {
		return err
	}
	s.uses.Callbacks = callbacks.New(callbacks.Config{
		Ledger: s.uses.Ledger, Logger: s.log, Closer: s.closeScope,
		Rejected:   func(kind, cause string) { s.meters.rejected.WithLabelValues(kind, cause).Inc() },
		Unrecorded: s.meters.unrecorded.Inc,
	})
	s.uses.Marks = marks.New(s.cfg.Store, s.uses.Ledger.Tables().Schedule)
	return nil
}

// openQueue opens the pull queue.
func (s *Server) openQueue(context.Context) error {
	s.mirror.SetBulkShare(cmp.Or(s.cfg.BulkShare, workqueue.DefaultBulkShare))
	s.mirror.OnPick(s.meters.picked)
	s.uses.Queue = workqueue.New(workqueue.Config{
		Ledger: s.uses.Ledger, Store: s.cfg.Store, Mirror: s.mirror, Limits: s.uses.Gate, Closer: s.closeScope,
		Logger: s.log, Held: s.uses.Gate.HoldsQueued, HeldTenant: s.uses.Gate.HoldsTenant,
	})
	return nil
}

// openGate opens the pauses, limits and closures.
func (s *Server) openGate(ctx context.Context) (err error) {
	s.uses.Admission = admission.New(s.cfg.Store, s.uses.Ledger.Tables().Queue, nil)
	if s.cfg.StartPaused != "" {
		if _, err := s.uses.Admission.Pause(ctx, admission.Pause{Reason: s.cfg.StartPaused, Actor: ledger.ActorSystem}); err != nil {
			return err
		}
	}
	settings := admission.Config{
		Service: s.uses.Admission, Bus: s.cfg.OpenBus != nil, Expired: s.pauseExpired, Runs: s.uses.Ledger,
		MaxClose: s.cfg.MaxClose, ClockWrong: s.clock.isWrong, Observe: s.meters.observeLimit, Logger: s.log,
	}
	if !s.uses.Ledger.Exclusive() {
		settings.Skew = cmp.Or(s.cfg.LimitSkew, 250*time.Millisecond)
	}
	s.uses.Gate, err = admission.NewGate(ctx, settings)
	return err
}

// startLimit returns what holds back starts of such work, or nil.
func (s *Server) startLimit(kind ledger.WorkKind, tenantID string) *statemachine.StartLimit {
	return s.uses.Gate.Blocks(kind.Service, kind.StepType, tenantID)
}

// closeScope closes what a throttled RESULT says, and logs it unless it is closed for as long.
func (s *Server) closeScope(ctx context.Context, c statemachine.Closure) {
	if s.uses.Gate.Close(c) {
		s.log.WarnContext(ctx, "a service throttles", "service", c.Service, "tenant_id", c.TenantID, "until", c.Until, "caller", c.Actor)
	}
}

// observe counts, logs and traces a committed change.
func (s *Server) observe(ctx context.Context, before, after *statemachine.Aggregate, history []statemachine.Transition) {
	s.uses.Counts.Observe(before, after, history)
	s.meters.observeTransitions(before, after, history)
	logTransitions(s.log, s.cfg.LogFailuresOnly, after, history)
	if s.cfg.Tracer != nil {
		s.cfg.Tracer.Observe(ctx, before, after, history)
	}
}

// pauseExpired logs that a pause has expired, and writes the audit record that an operator's
// resume would write.
func (s *Server) pauseExpired(ctx context.Context, pause admission.Pause) {
	s.log.InfoContext(ctx, "dispatch changed", "pause_id", pause.ID(), "state", string(pause.State), "reason", "the pause has expired")
	if s.cfg.HTTP.Audit == nil {
		return
	}
	s.cfg.HTTP.Audit.Write(ctx, auth.Record{
		At: pause.ResumedAt, Caller: auth.NewCaller(ledger.ActorSystem, auth.ByExpiry), Action: auth.ExpirePause,
		Object: pause.ID(), Tenant: pause.TenantID(), Outcome: auth.Done,
	})
}

// openCounts opens the counts.
func (s *Server) openCounts(ctx context.Context) error {
	s.uses.Counts = search.NewCounts(search.CountsConfig{
		Store: s.cfg.Store, Table: s.uses.Ledger.Tables().Queue, Exclusive: s.uses.Ledger.Exclusive(), Queue: s.uses.Queue,
		Replica: rand.Text(), Paused: s.uses.Gate.Paused, Waited: s.meters.waited, Took: s.meters.took, Logger: s.log,
	})
	return s.uses.Counts.Open(ctx)
}

// openUpkeep opens the background work on jobs.
func (s *Server) openUpkeep(context.Context) error {
	s.sweeper = background.NewSweeper(background.SweeperConfig{
		Ledger: s.uses.Ledger, Logger: s.log, Observe: s.meters.observeSweep, Outages: s.bus.outagesForSweeper(),
	})
	dates := background.SweeperConfig{Ledger: s.uses.Ledger, Kind: ledger.Date, Logger: s.log, Observe: s.meters.observeDates}
	if s.uses.Ledger.Exclusive() { // Many jobs may have one date, and their changes share syncs.
		dates.Parallel = 64
	}
	s.dates = background.NewSweeper(dates)
	s.uses.Schedules = schedules.New(schedules.Config{
		Store: s.cfg.Store, Ledger: s.uses.Ledger, Commands: s.uses.Commands,
		Build: s.cfg.Build, Observe: s.meters.observeOccurrence,
	})
	s.cron = background.NewCron(background.CronConfig{Schedules: s.uses.Schedules, Logger: s.log})
	s.retention = background.NewRetention(background.RetentionConfig{
		Ledger: s.uses.Ledger, Logger: s.log,
		Observe: func(outcome ledger.Purged) { s.meters.purged.WithLabelValues(outcome.String()).Inc() },
	})
	s.uses.Operations = background.NewOperations(background.OperationsConfig{
		Ledger: s.uses.Ledger, Commands: s.uses.Commands, Live: s.uses.Counts.Live,
		Store: s.cfg.Store, Table: s.uses.Ledger.Tables().Schedule,
	})
	s.uses.Operator = outbox.NewOperator(s.uses.Ledger, s.uses.Counts.Live)
	s.bulk = background.NewBulk(background.BulkConfig{
		Operations: s.uses.Operations, Logger: s.log,
		Observe: func(kind background.Kind, outcome background.ItemOutcome) {
			s.meters.bulkJobs.WithLabelValues(string(kind), string(outcome)).Inc()
		},
	})
	s.uses.Reconciler = background.NewReconciler(background.ReconcilerConfig{
		Ledger: s.uses.Ledger, Counts: s.uses.Counts, Schedules: s.uses.Schedules, Logger: s.log,
	})
	return nil
}

// openWebhooks opens the sender of webhooks.
func (s *Server) openWebhooks(context.Context) (err error) {
	if s.guard, err = webhook.NewGuard(s.cfg.Webhooks); err != nil {
		return err
	}
	send := s.cfg.SendWebhook
	if send == nil {
		secrets := s.cfg.WebhookSecrets
		if len(secrets) == 0 { // Webhooks are still sent, but receivers cannot verify the sender.
			var key [32]byte
			_, _ = rand.Read(key[:]) // crypto/rand never fails.
			secret, err := webhook.ParseSecret("whsec_" + base64.StdEncoding.EncodeToString(key[:]))
			if err != nil {
				return err
			}
			secrets = []webhook.Secret{secret}
		}
		sender := webhook.NewSender(webhook.Config{Guard: s.guard, Secrets: webhook.TenantSecrets(secrets...)})
		send, s.closeHTTP = sender.Send, sender.Close
	}
	gate := webhook.NewGate(webhook.GateConfig{})
	settings := background.WebhooksConfig{
		Ledger: s.uses.Ledger, Logger: s.log,
		Send: send, Gate: gate, Policy: background.StandardWebhookPolicy(),
		Observe: func(job *statemachine.Job, began time.Time, result webhook.Result) {
			s.meters.webhooks.WithLabelValues(string(result.Outcome)).Inc()
			if s.cfg.Tracer != nil && result.Outcome != webhook.Deferred {
				s.cfg.Tracer.Webhook(job, began, string(result.Outcome), result.Reason)
			}
		},
	}
	if s.cfg.Tracer != nil {
		settings.Traceparent = traceparent
	}
	s.webhooks = background.NewWebhooks(settings)
	return nil
}

// traceparent returns the traceparent of a job's span, empty if the job has no trace.
func traceparent(job *statemachine.Job) string {
	from, ok := statemachine.ParseTrace(job.Traceparent)
	if !ok {
		return ""
	}
	return from.OfJob(job.ID).String()
}

// openRelay opens the relay.
func (s *Server) openRelay(context.Context) (err error) {
	s.relay, err = outbox.NewRelay(outbox.Config{
		Ledger: s.uses.Ledger, Publisher: s.bus.Publisher, Handoff: s.handoff, Breakers: s.bus.circuits,
		Deadline: s.cfg.PublishTimeout, Logger: s.log, Replica: s.cfg.Replica,
		Observe: func(outcome outbox.Outcome) { s.meters.relayed.WithLabelValues(string(outcome)).Inc() },
		Sent: func(answer outbox.Outcome, took time.Duration) {
			s.meters.published.WithLabelValues(string(answer)).Observe(took.Seconds())
		},
		Expires: func() bool { return !s.clock.isWrong() },
		Admit:   s.uses.Gate.Admit, Held: s.uses.Gate.HoldsQueued, // A ramp must not count an admitted directive twice.
		Fatal: func(defect *seqledger.IllegalTransitionError) { // Fatal is called once.
			s.log.Error("illegal transition in the relay's window", slog.Any("transition", defect))
			if s.cfg.Fatal != nil {
				s.cfg.Fatal(defect)
			}
			s.illegal <- defect
		},
	})
	return err
}

// openCommands opens what accepts commands and makes reruns.
func (s *Server) openCommands(context.Context) error {
	router, err := routing.New(s.cfg.Routing)
	if err != nil {
		return err
	}
	policy := s.cfg.Policy
	policy.CheckCallbackURL = func(url string) string {
		if refused, ok := errors.AsType[*webhook.RefusedError](s.guard.CheckURL(url)); ok {
			return refused.Message
		}
		return ""
	}
	s.uses.Commands, err = commands.New(commands.Config{
		Ledger: s.uses.Ledger, Protocols: s.cfg.Protocols, Router: router, Policy: policy, Defaults: s.cfg.Defaults,
	})
	return err
}

// openAPI opens the HTTP API, and registers the metrics that read from the other parts.
func (s *Server) openAPI(context.Context) (err error) {
	around := search.Surroundings{
		Limit: s.startLimit, Pause: s.uses.Gate.Covering, LastPoll: s.uses.Queue.LastPoll, EndRate: s.uses.Counts.EndRate,
		Logger: s.log,
	}
	if s.uses.Ledger.Exclusive() { // On a shared store the counts does not know the live jobs.
		around.Live = s.uses.Counts.Live
	}
	if store, ok := tablestore.As[tablestore.Paced](s.cfg.Store); ok {
		around.Slow = func() time.Time { return store.Pace().Slow }
	}
	if s.bus.outages != nil {
		around.Circuit = s.bus.outages.Circuit
		s.uses.Circuits = s.bus.notClosed
	}
	s.uses.Jobs = search.New(s.uses.Ledger, &s.ended, around)
	settings := s.cfg.HTTP
	settings.UseCases, settings.Registry, settings.Log = s.uses, s.cfg.Registry, s.log
	settings.Lanes, settings.ProbesOnly = s.cfg.Routing.Lanes, !s.cfg.has(RoleAPI)
	settings.Ready = (&readiness{
		ledger: s.uses.Ledger, store: s.cfg.Store, clock: s.clock, bus: s.bus, gate: s.uses.Gate,
		reconciler: s.uses.Reconciler, watchers: s.cfg.Watchers, submitted: s.submitted,
	}).Ready
	if s.api, err = httpapi.New(settings); err != nil {
		return err
	}
	s.meters.watch(s)
	return nil
}

// ServeHTTP serves a request of the API. Traces of its effects are linked to the caller's
// span.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.underway.Add(1) // Count the request before it checks whether the server is stopping.
	defer s.underway.Add(-1)
	if s.cfg.Tracer != nil {
		r = r.WithContext(s.cfg.Tracer.Received(r.Context(), r.Header.Get("traceparent")))
	}
	s.api.ServeHTTP(w, r)
}

// openBus opens the bus: the pull queue, unless [Config.OpenBus] is set.
func (s *Server) openBus(context.Context) error {
	circuits := breaker.NewSet(breaker.Config{})
	s.bus = &bus{Bus: Bus{Publisher: s.uses.Queue}, circuits: circuits, lanes: s.cfg.Routing.Lanes}
	if s.cfg.OpenBus == nil {
		return nil
	}
	opened, err := s.cfg.OpenBus(s.uses.Callbacks.Apply)
	if err != nil {
		return err
	}
	if opened.Publisher == nil {
		return errors.New("server: the bus has no Publisher")
	}
	// The margin covers the time between two attempts, in which a circuit is half open.
	margin := s.cfg.PublishTimeout + 2*s.cfg.RelayInterval + 4*time.Second
	s.bus.Bus, s.bus.outages = *opened, outbox.NewOutages(s.cfg.Store, s.uses.Ledger.Tables().Schedule, margin, s.cfg.Logger)
	return nil
}
