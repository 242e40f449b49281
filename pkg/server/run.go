package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/background"
)

const (
	// countsInterval is the time between two writes of the counts. A crash loses what was
	// counted since the last one.
	countsInterval = 10 * time.Second
	// deadLetterInterval is the time between two counts of the dead letters.
	deadLetterInterval = 15 * time.Second
	// sharedDatesInterval is the time between two reads of the due dates on a shared store.
	sharedDatesInterval = 5 * time.Second
	// overdueInterval is the time between two counts of the jobs that are due for purging.
	overdueInterval = 15 * time.Second
	// loopJitter is the [background.Loop] Jitter of all loops.
	loopJitter = 0.1
	// closeTimeout bounds the last write of the counts.
	closeTimeout = 2 * time.Second
)

// Run does the background work of the process's roles until the context ends or a part
// fails. Then it shuts down: the API refuses new requests, those in progress may finish
// within [Config.Grace], and the relay publishes what they have committed. Run returns nil
// if all of this succeeds. Call it once.
func (s *Server) Run(ctx context.Context) error {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, failed := errgroup.WithContext(running)
	for _, loop := range s.loops() {
		group.Go(func() error { return loop(failed) })
	}
	var replies sync.WaitGroup
	reading, stopReplies := context.WithCancel(failed)
	defer stopReplies()
	if s.bus.Replies != nil && s.cfg.has(RoleAPI) { // Replies are callbacks over the bus.
		replies.Go(func() { _ = s.bus.Replies.Run(reading) }) // Run logs topics that it cannot read.
	}
	if s.submitted != nil {
		take, maintain := s.inboxLoops()
		for _, loop := range []background.Loop{s.equipped(take), s.equipped(maintain)} {
			replies.Go(func() { _ = loop.Run(reading) }) // Loops return nil.
		}
	}

	var cause error
	select {
	case <-ctx.Done():
	case illegal := <-s.illegal:
		cause = fmt.Errorf("relay stopped: %w", illegal)
	case <-failed.Done():
	}
	s.log.InfoContext(ctx, "shutting down", "cause", errors.Join(cause, context.Cause(ctx), context.Cause(failed)),
		"grace", s.cfg.Grace.String())
	s.api.Drain()
	cause = errors.Join(cause, s.requestsEnd())
	stopReplies() // Also ends the inbox. Both end before the relay, which publishes what they commit.
	replies.Wait()
	cause = errors.Join(cause, s.looksEnd()) // Before the relay, likewise.
	stop()
	cause = errors.Join(cause, group.Wait())
	s.closeCounts(cause == nil)
	s.closeHTTP()
	return cause
}

// requestsEnd waits until no request is in progress.
func (s *Server) requestsEnd() error {
	for end := time.Now().Add(s.cfg.Grace); s.underway.Load() > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("requests did not end in %s", s.cfg.Grace)
		}
	}
	return nil
}

// maxLooks bounds the looks at lines that no caller waits for.
const maxLooks = 256

// look does work that follows a commit and for which no caller waits: a look at a line. While as much is
// under way as fits, and from [Server.looksEnd] on, the caller does the work itself. It is [ledger.Config]'s Later.
func (s *Server) look(work func()) {
	if !s.looks.TryAcquire(1) {
		work()
		return
	}
	go func() {
		defer s.looks.Release(1)
		work()
	}()
}

// looksEnd waits until no look is under way. It keeps the room, so that none begins afterwards.
func (s *Server) looksEnd() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Grace)
	defer cancel()
	if s.looks.Acquire(ctx, maxLooks) != nil {
		return fmt.Errorf("looks at lines did not end in %s", s.cfg.Grace)
	}
	return nil
}

// closeCounts stores the counts. If that fails, the next process counts again.
func (s *Server) closeCounts(orderly bool) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := s.uses.Counts.Close(ctx, orderly); err != nil {
		s.log.WarnContext(ctx, "counts not stored", "error", err)
	}
}

// loops returns the background work of the process's roles.
func (s *Server) loops() []func(context.Context) error {
	var loops []func(context.Context) error
	every := func(interval time.Duration, loop background.Loop) {
		loop.Interval = interval
		loops = append(loops, s.equipped(loop).Run)
	}
	every(time.Second, background.Loop{Name: "gate", Pass: s.uses.Gate.Refresh})
	every(time.Second, background.Loop{Name: "run slots", Pass: s.uses.Gate.RefreshRuns})
	loops = append(loops, s.uses.Gate.Run)
	every(countsInterval, background.Loop{Name: "counts", Pass: s.uses.Counts.RunOnce})
	// In each process, so that it shows if none has the role sweeper.
	every(overdueInterval, background.Loop{Name: "retention survey", Pass: s.retention.Survey})
	for _, watcher := range s.cfg.Watchers {
		every(s.cfg.ReloadInterval, s.watched(watcher.Loop()))
	}
	for _, loop := range s.cfg.Loops {
		every(loop.Interval, loop)
	}
	if s.bus.outages != nil {
		every(time.Second, background.Loop{Name: "outages", Pass: func(ctx context.Context) error {
			return s.bus.outages.Note(ctx, s.bus.outOfService(time.Now())...)
		}})
	}
	if s.bus.DeadLetters != nil && s.cfg.has(RoleAPI) {
		every(deadLetterInterval, background.Loop{Name: "dead letters", Pass: s.bus.DeadLetters.Count})
	}
	if s.cfg.has(RoleRelay) {
		loops = append(loops, s.relay.Run)
		every(s.cfg.RelayInterval, background.Loop{Name: "relay", Pass: func(ctx context.Context) error {
			_, err := s.relay.RunOnce(ctx)
			return err
		}})
	}
	if s.cfg.has(RoleSweeper) {
		every(s.cfg.SweepInterval, s.clock.guard(s.sweeper.Loop()))
		every(s.datesInterval(), s.clock.guard(s.dates.Loop()))
		every(s.datesInterval(), s.clock.guard(s.cron.Loop()))
		every(s.cfg.SweepInterval, s.clock.guard(s.retention.Loop()))
		every(time.Second, s.clock.guard(s.uses.Reconciler.Loop()))
		every(time.Second, s.clock.guard(s.uses.Reconciler.CountLoop()))
		every(time.Second, s.clock.guard(s.uses.Reconciler.AgeLoop()))
		every(time.Second, s.bulk.Loop())
		loops = append(loops, s.webhooks.Run)
		every(s.cfg.SweepInterval, s.webhooks.Loop())
	}
	return loops
}

// datesInterval returns the time between two reads of the due dates. On a shared store each read costs
// requests, and dates are not as urgent as leases.
func (s *Server) datesInterval() time.Duration {
	if s.uses.Ledger.Exclusive() {
		return s.cfg.SweepInterval
	}
	return max(s.cfg.SweepInterval, sharedDatesInterval)
}

// equipped returns the loop with jitter, logger and metrics.
func (s *Server) equipped(loop background.Loop) background.Loop {
	loop.Jitter, loop.Logger, loop.Observe = loopJitter, s.log, s.meters.observeLoop(loop.Name)
	return loop
}

// watched returns the loop of a watcher. If a pass loads other protocols, it creates their
// series.
func (s *Server) watched(loop background.Loop) background.Loop {
	known, pass := s.cfg.Protocols.Load(), loop.Pass
	loop.Pass = func(ctx context.Context) error {
		err := pass(ctx)
		if current := s.cfg.Protocols.Load(); current != known {
			s.meters.createSeries(current)
			known = current
		}
		return err
	}
	return loop
}
