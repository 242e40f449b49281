package servicebus_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/servicebus"
)

// A batch has one outcome. The tests' topic takes fits messages per batch and
// answers a batch according to the messages in it.
func TestLane_ResendsMessagesOfARejectedBatchAlone(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		fits     int // messages into one batch
		messages int
		answers  map[string]error // to the batches, by what they hold
		batches  []string
		outcomes []string
	}{
		{
			"all in one", 10, 3, nil,
			[]string{"0 1 2"}, []string{"sent", "sent", "sent"},
		},
		{
			"as many as fit", 2, 5, nil,
			[]string{"0 1", "2 3", "4"}, []string{"sent", "sent", "sent", "sent", "sent"},
		},
		{
			"one that is refused, alone", 2, 2, map[string]error{"0": said("amqp:not-allowed"), "0 1": said("amqp:not-allowed")},
			[]string{"0 1", "0", "1"}, []string{"rejected", "sent"},
		},
		{
			"one that is refused, among others", 3, 5, map[string]error{"0 1 2": said("amqp:not-allowed"), "1": said("amqp:not-allowed")},
			[]string{"0 1 2", "0", "1", "2", "3 4"}, []string{"sent", "rejected", "sent", "sent", "sent"},
		},
		{
			"a batch that is too large, of messages that are not", 2, 3, map[string]error{"0 1": said("amqp:link:message-size-exceeded")},
			[]string{"0 1", "0", "1", "2"}, []string{"sent", "sent", "sent"},
		},
		{
			"one that is too large", 1, 3, map[string]error{"1": azservicebus.ErrMessageTooLarge},
			[]string{"0", "1", "2"}, []string{"sent", "rejected for good", "sent"},
		},
		{
			"a topic that is missing", 2, 5, map[string]error{"0 1": said("amqp:not-found")},
			[]string{"0 1"}, []string{"topic", "topic", "topic", "topic", "topic"},
		},
		{
			"a topic that is full after the first", 2, 5, map[string]error{"2 3": said("amqp:resource-limit-exceeded")},
			[]string{"0 1", "2 3"}, []string{"sent", "sent", "topic", "topic", "topic"},
		},
		{
			"an error unknown to the SDK", 1, 3, map[string]error{"1": coded(azservicebus.CodeConnectionLost)},
			[]string{"0", "1"}, []string{"sent", "topic", "topic"},
		},
		{
			"an outcome that is not known", 1, 3, map[string]error{"1": io.ErrUnexpectedEOF},
			[]string{"0", "1"}, []string{"sent", "unknown", "unknown"},
		},
		{
			"an outage while they are sent one by one", 4, 6,
			map[string]error{"0 1 2 3": said("amqp:not-allowed"), "0": said("amqp:not-allowed"), "2": said("com.microsoft:server-busy")},
			[]string{"0 1 2 3", "0", "1", "2"}, []string{"rejected", "sent", "topic", "topic", "topic", "topic"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var batches []string
			p := publisher(t, func(_ context.Context, _ string, messages []*azservicebus.Message) (int, error) {
				taken := min(test.fits, len(messages))
				batches = append(batches, ids(messages[:taken]))
				return taken, test.answers[ids(messages[:taken])]
			})
			outcomes := p.Publish(t.Context(), directives("topic", test.messages))
			if diff := cmp.Diff(test.batches, batches); diff != "" {
				t.Errorf("batches (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.outcomes, meanings(outcomes)); diff != "" {
				t.Errorf("outcomes (-want +got):\n%s", diff)
			}
		})
	}
}

// until waits for the channel and ignores its context, as the SDK may do.
func until(back <-chan struct{}) sending {
	return func(_ context.Context, _ string, messages []*azservicebus.Message) (int, error) {
		<-back
		return len(messages), nil
	}
}

// silent waits for the end of its context.
func silent(ctx context.Context, _ string, messages []*azservicebus.Message) (int, error) {
	<-ctx.Done()
	return len(messages), ctx.Err()
}

// A send that does not return with its context is abandoned. This process then cuts the
// connections, but that is no outage of the whole bus.
func TestLane_ASendThatNeverReturnsIsAbandoned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		back := make(chan struct{})
		var logged bytes.Buffer
		p := publisher(t, until(back), func(cfg *servicebus.PublisherConfig) {
			cfg.SendTimeout, cfg.Grace = 3*time.Second, time.Second
			cfg.Logger = slog.New(slog.NewTextHandler(&logged, nil))
		})
		begin := time.Now()
		outcomes := p.Publish(t.Context(), directives("topic", 2))
		if took := time.Since(begin); took != 4*time.Second {
			t.Errorf("it took %s, want timeout and grace", took)
		}
		if diff := cmp.Diff([]string{"unknown", "unknown"}, meanings(outcomes)); diff != "" {
			t.Errorf("outcomes (-want +got):\n%s", diff)
		}
		if p.Stuck() != 1 || p.Cuts() != 1 || !strings.Contains(logged.String(), "topic=topic") {
			t.Errorf("%d stuck, %d cuts, log %q", p.Stuck(), p.Cuts(), logged.String())
		}
		close(back)
		synctest.Wait()
		if p.Stuck() != 0 {
			t.Errorf("%d stuck after it returned", p.Stuck())
		}
	})
}

// A send that returns within the grace after its context does not cause a cut.
func TestLane_ASendMayReturnWithinTheGrace(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		err  error
		want string
	}{
		{"with success", nil, "sent"},
		{"refused", said("amqp:not-allowed"), "rejected"},
		{"with the end of its time", context.DeadlineExceeded, "unknown"},
		{"with a lost connection", coded(azservicebus.CodeConnectionLost), "unknown"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := publisher(t, func(ctx context.Context, _ string, _ []*azservicebus.Message) (int, error) {
					<-ctx.Done()
					time.Sleep(400 * time.Millisecond)
					return 1, test.err
				})
				if got := meaning(p.Publish(t.Context(), directives("topic", 1))[0]); got != test.want {
					t.Errorf("%s, want %s", got, test.want)
				}
				if p.Stuck() != 0 || p.Cuts() != 0 {
					t.Errorf("%d stuck, %d cuts, want none", p.Stuck(), p.Cuts())
				}
			})
		})
	}
}

// A topic has few permits, so that sends that do not return cannot pile up. Each topic
// has its own.
func TestLane_WithoutAPermitTheTopicIsOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		back := make(chan struct{})
		var stuck atomic.Bool
		stuck.Store(true)
		p := publisher(t, func(ctx context.Context, topic string, messages []*azservicebus.Message) (int, error) {
			if topic == "topic" && stuck.Load() {
				return until(back)(ctx, topic, messages)
			}
			return len(messages), nil
		}, func(cfg *servicebus.PublisherConfig) { cfg.Parallel, cfg.Patience = 2, 10 })
		for range 2 {
			if got := meaning(p.Publish(t.Context(), directives("topic", 1))[0]); got != "unknown" {
				t.Errorf("an abandoned send: %s, want unknown", got)
			}
		}
		begin := time.Now()
		if got := meaning(p.Publish(t.Context(), directives("topic", 1))[0]); got != "topic" || time.Since(begin) != 0 {
			t.Errorf("without a permit: %s after %s, want the topic's outage at once", got, time.Since(begin))
		}
		if got := meaning(p.Publish(t.Context(), directives("another", 1))[0]); got != "sent" {
			t.Errorf("another topic: %s, want sent", got)
		}
		stuck.Store(false)
		close(back)
		synctest.Wait()
		if got := meaning(p.Publish(t.Context(), directives("topic", 1))[0]); got != "sent" || p.Stuck() != 0 || p.Cuts() != 2 {
			t.Errorf("afterwards: %s, %d stuck, %d cuts", got, p.Stuck(), p.Cuts())
		}
	})
}

// Sends to one topic are concurrent, up to a limit.
func TestLane_WaitsForAPermit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var under, most atomic.Int32
		p := publisher(t, func(_ context.Context, _ string, messages []*azservicebus.Message) (int, error) {
			most.Store(max(most.Load(), under.Add(1)))
			time.Sleep(time.Second)
			under.Add(-1)
			return len(messages), nil
		}, func(cfg *servicebus.PublisherConfig) { cfg.Parallel, cfg.SendTimeout = 2, 4*time.Second })
		var publishes sync.WaitGroup
		var sent, unknown atomic.Int32
		for range 6 {
			publishes.Go(func() {
				switch got := meaning(p.Publish(t.Context(), directives("topic", 1))[0]); got {
				case "sent":
					sent.Add(1)
				case "unknown":
					unknown.Add(1)
				default:
					t.Errorf("one of them: %s", got)
				}
			})
		}
		publishes.Wait()
		if most.Load() != 2 || sent.Load() != 6 || unknown.Load() != 0 {
			t.Errorf("%d at once, %d sent, %d unknown", most.Load(), sent.Load(), unknown.Load())
		}
	})
}

// The wait for a permit is bounded too.
func TestLane_GivesUpWaitingForAPermit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		back := make(chan struct{})
		p := publisher(t, until(back), func(cfg *servicebus.PublisherConfig) { cfg.Parallel = 1 })
		first := make(chan []error)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go func() { first <- p.Publish(t.Context(), directives("topic", 1)) }()
		synctest.Wait()
		if got := meaning(p.Publish(ctx, directives("topic", 1))[0]); got != "unknown" {
			t.Errorf("without a permit: %s, want unknown", got)
		}
		close(back)
		if got := meaning((<-first)[0]); got != "sent" {
			t.Errorf("the one that held it: %s", got)
		}
	})
}

// One unanswered send proves nothing; after several in a row the topic is out.
func TestLane_RepeatedSilenceIsTheTopicsOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var answers []error
		p := publisher(t, func(ctx context.Context, topic string, messages []*azservicebus.Message) (int, error) {
			if len(answers) == 0 {
				return silent(ctx, topic, messages)
			}
			err := answers[0]
			answers = answers[1:]
			return len(messages), err
		}, func(cfg *servicebus.PublisherConfig) { cfg.Patience = 3 })
		publish := func() string { return meaning(p.Publish(t.Context(), directives("topic", 1))[0]) }
		if got := []string{publish(), publish()}; !cmp.Equal(got, []string{"unknown", "unknown"}) {
			t.Errorf("at first %v", got)
		}
		answers = []error{nil}
		if got := publish(); got != "sent" {
			t.Errorf("an answer: %s", got)
		}
		if got := []string{publish(), publish(), publish(), publish()}; !cmp.Equal(got, []string{"unknown", "unknown", "topic", "topic"}) {
			t.Errorf("after an answer %v", got)
		}
		answers = []error{said("amqp:not-allowed")}
		if got := []string{publish(), publish()}; !cmp.Equal(got, []string{"rejected", "unknown"}) {
			t.Errorf("after a refusal, which is an answer %v", got)
		}
		if p.Cuts() != 0 {
			t.Errorf("%d cuts, want none: each returned", p.Cuts())
		}
	})
}

// Abandoned sends count as unanswered.
func TestLane_AbandonedSendsCountAsSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		back := make(chan struct{})
		p := publisher(t, until(back), func(cfg *servicebus.PublisherConfig) { cfg.Patience, cfg.Parallel = 2, 8 })
		publish := func() string { return meaning(p.Publish(t.Context(), directives("topic", 1))[0]) }
		if got := []string{publish(), publish()}; !cmp.Equal(got, []string{"unknown", "topic"}) {
			t.Errorf("outcomes %v", got)
		}
		close(back)
	})
}

// A lost connection is an outage of the whole bus.
func TestLane_WithoutAConnectionTheBusIsOut(t *testing.T) {
	t.Parallel()
	p := connectedOrNot(t, false, func(_ context.Context, _ string, messages []*azservicebus.Message) (int, error) {
		return len(messages), coded(azservicebus.CodeConnectionLost)
	})
	if diff := cmp.Diff([]string{"bus", "bus"}, meanings(p.Publish(t.Context(), directives("topic", 2)))); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
}

// Silence without a connection is an outage of the whole bus.
func TestLane_SilenceWithoutAConnectionIsAnOutageOfTheBus(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := connectedOrNot(t, false, silent)
		outcomes := p.Publish(t.Context(), directives("topic", 2))
		if diff := cmp.Diff([]string{"bus", "bus"}, meanings(outcomes)); diff != "" {
			t.Errorf("outcomes (-want +got):\n%s", diff)
		}
		if !errors.Is(outcomes[0], context.DeadlineExceeded) {
			t.Errorf("%v does not say why", outcomes[0])
		}
	})
}

// The publisher's caller has a deadline of its own.
func TestLane_EndsWithTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := publisher(t, silent, func(cfg *servicebus.PublisherConfig) { cfg.Patience = 2 })
		for range 4 { // A cancellation does not count as silence.
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			begin := time.Now()
			if got := meaning(p.Publish(ctx, directives("topic", 1))[0]); got != "unknown" || time.Since(begin) != time.Second {
				t.Errorf("%s after %s, want unknown after a second", got, time.Since(begin))
			}
		}
	})
}
