package topology_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/servicebus/topology"
)

// memory is an Admin of a namespace in memory.
type memory struct {
	limit  int
	topics map[string]*topology.TopicState
	err    error
}

func (m *memory) Limits(context.Context) (int, error) { return m.limit, m.err }

func (m *memory) Topic(_ context.Context, name string) (*topology.TopicState, error) {
	return m.topics[name], m.err
}

func (m *memory) CreateTopic(_ context.Context, topic *topology.Topic) error {
	m.topics[topic.Name] = &topology.TopicState{Active: true, Deduplicates: topic.Window > 0, Window: topic.Window}
	return m.err
}

func (m *memory) CreateSubscription(_ context.Context, topic string, s topology.Subscription) error {
	m.topics[topic].Subscriptions = append(m.topics[topic].Subscriptions, topology.SubscriptionState{Name: s.Name, Active: true})
	return m.err
}

// wanted returns a topology of two lanes with replies.
func wanted(t *testing.T) *topology.Topology {
	t.Helper()
	top, err := topology.New(topology.Config{
		TopicPrefix: "bus-p", Lanes: 2, Services: []string{"ocr", "embed"}, ReplyPrefix: "replies-p", ReplySubscription: "lucius",
		MessageBytes: 200_000,
	})
	if err != nil {
		t.Fatal(err)
	}
	return top
}

func TestProvision_CreatesWhatCheckReportsMissing(t *testing.T) {
	t.Parallel()
	bus := &memory{topics: map[string]*topology.TopicState{}, limit: 256 << 10}
	top := wanted(t)
	findings, err := top.Check(t.Context(), bus)
	if err != nil || len(findings) != 4 || slices.ContainsFunc(findings, func(f topology.Finding) bool { return !f.Missing }) {
		t.Errorf("an empty namespace: %v, %v", findings, err)
	}
	created, err := top.Provision(t.Context(), bus)
	want := []string{
		"bus-p0", "bus-p0/ocr", "bus-p0/embed", "bus-p1", "bus-p1/ocr", "bus-p1/embed",
		"replies-p0", "replies-p0/lucius", "replies-p1", "replies-p1/lucius",
	}
	if diff := cmp.Diff(want, created); err != nil || diff != "" {
		t.Errorf("created: %v (-want +got)\n%s", err, diff)
	}
	if findings, err := top.Check(t.Context(), bus); err != nil || len(findings) != 0 {
		t.Errorf("after provisioning: %v, %v", findings, err)
	}
	if created, err := top.Provision(t.Context(), bus); err != nil || len(created) != 0 {
		t.Errorf("a second time it creates %v, %v", created, err)
	}
}

func TestCheck_ReportsWhatIsWrong(t *testing.T) {
	t.Parallel()
	some := []topology.SubscriptionState{{Name: "other", Active: true}}
	for name, test := range map[string]struct {
		state topology.TopicState
		level topology.Level
		want  string
	}{
		"swallows":     {topology.TopicState{Active: true, Deduplicates: true, Window: time.Hour}, topology.Wrong, "every message is lost"},
		"disabled":     {topology.TopicState{Deduplicates: true, Window: time.Hour, Subscriptions: some}, topology.Wrong, "is disabled"},
		"duplicates":   {topology.TopicState{Active: true, Subscriptions: some}, topology.Warning, "does not detect duplicates"},
		"short window": {topology.TopicState{Active: true, Deduplicates: true, Window: time.Minute, Subscriptions: some}, topology.Warning, "for 1m0s"},
		"small messages": {
			topology.TopicState{Active: true, Deduplicates: true, Window: time.Hour, MessageBytes: 1024, Subscriptions: some},
			topology.Wrong, "messages may have 1024 bytes",
		},
		"idle subscription": {
			topology.TopicState{Active: true, Deduplicates: true, Window: time.Hour, Subscriptions: []topology.SubscriptionState{{Name: "x"}}},
			topology.Warning, "subscription is disabled",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			top := wanted(t)
			top.Topics = top.Topics[:1]
			bus := &memory{topics: map[string]*topology.TopicState{"bus-p0": &test.state}, limit: 256 << 10}
			findings, err := top.Check(t.Context(), bus)
			if err != nil || len(findings) != 1 || findings[0].Level != test.level || !strings.Contains(findings[0].String(), test.want) {
				t.Errorf("%v, %v, want %s: %q", findings, err, test.level, test.want)
			}
		})
	}
}

func TestCheck_RequiresItsOwnSubscriptions(t *testing.T) {
	t.Parallel()
	top := wanted(t)
	top.Topics = top.Topics[2:3]
	bus := &memory{topics: map[string]*topology.TopicState{"replies-p0": {
		Active: true, Subscriptions: []topology.SubscriptionState{{Name: "other", Active: true}},
	}}}
	findings, err := top.Check(t.Context(), bus)
	if err != nil || len(findings) != 1 || findings[0].Entity != "replies-p0/lucius" || !findings[0].Missing {
		t.Errorf("%v, %v", findings, err)
	}
}

func TestNew_RejectsNamesThatServiceBusWouldRefuse(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]topology.Config{
		"Lanes is 0":                  {TopicPrefix: "p"},
		`service "o/c"`:               {TopicPrefix: "p", Lanes: 1, Services: []string{"o/c"}},
		`cannot be the name of a top`: {TopicPrefix: "p/", Lanes: 1},
		`cannot be the name of a sub`: {TopicPrefix: "p", Lanes: 1, ReplyPrefix: "r", ReplySubscription: ""},
		`for directives and for rep`:  {TopicPrefix: "p", Lanes: 1, ReplyPrefix: "p", ReplySubscription: "s"},
	} {
		if _, err := topology.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", cfg, err, want)
		}
	}
}

func TestNamespaceErrorsNameTheTopic(t *testing.T) {
	t.Parallel()
	bus := &memory{topics: map[string]*topology.TopicState{}, err: topology.ErrForbidden}
	if _, err := wanted(t).Check(t.Context(), bus); !errors.Is(err, topology.ErrForbidden) {
		t.Errorf("check: %v", err)
	}
	_, err := wanted(t).Provision(t.Context(), bus)
	if !errors.Is(err, topology.ErrForbidden) || !strings.Contains(err.Error(), "bus-p0") {
		t.Errorf("provision: %v", err)
	}
}
