package namespace_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/servicebus/namespace"
)

// memory is an Admin of a namespace in memory.
type memory struct {
	mu     sync.Mutex
	limit  int
	topics map[string]*namespace.TopicState
	err    error
	// busy is how many changes are refused because another one is in progress.
	busy int
	// rival creates the entity before a change is refused.
	rival bool
}

func (m *memory) Limits(context.Context) (int, error) { return m.limit, m.err }

func (m *memory) Topic(_ context.Context, name string) (*namespace.TopicState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.topics[name], m.err
}

func (m *memory) CreateTopic(_ context.Context, topic *namespace.Topic) error {
	return m.create(func() {
		m.topics[topic.Name] = &namespace.TopicState{Active: true, Deduplicates: topic.Window > 0, Window: topic.Window}
	})
}

func (m *memory) CreateSubscription(_ context.Context, topic string, s namespace.Subscription) error {
	rule := namespace.Rule{Name: "$Default", SQL: namespace.Everything}
	if s.Service != "" {
		rule = takes(map[string]any{"service": s.Service})
	}
	return m.create(func() {
		m.topics[topic].Subscriptions = append(m.topics[topic].Subscriptions, namespace.SubscriptionState{
			Name: s.Name, Active: true, Lock: time.Minute, Rules: []namespace.Rule{rule},
		})
	})
}

// create makes the change, unless another one is in progress.
func (m *memory) create(change func()) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy > 0 {
		if m.busy--; m.rival {
			change()
		}
		return namespace.ErrConflict
	}
	if m.err == nil {
		change()
	}
	return m.err
}

// takes is the rule of a correlation filter.
func takes(properties map[string]any) namespace.Rule {
	return namespace.Rule{Name: "rule", Properties: properties}
}

// wanted returns a topology of two lanes with replies.
func wanted(t *testing.T) *namespace.Topology {
	t.Helper()
	top, err := namespace.New(namespace.Config{
		TopicPrefix: "bus-p", Lanes: 2, ReplyPrefix: "replies-p", ReplySubscription: "lucius",
		Directives:   []namespace.Directive{{Service: "ocr", StepType: "OCR"}, {Service: "embed", StepType: "EMBED"}, {Service: "ocr", StepType: "OCR"}},
		MessageBytes: 200_000, AckTimeout: 30 * time.Second, Lease: 15 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	return top
}

// everything is what provisioning creates in an empty namespace.
var everything = []string{
	"bus-p0", "bus-p0/embed", "bus-p0/ocr", "bus-p1", "bus-p1/embed", "bus-p1/ocr",
	"replies-p0", "replies-p0/lucius", "replies-p1", "replies-p1/lucius",
}

func TestProvision_CreatesWhatCheckReportsMissing(t *testing.T) {
	t.Parallel()
	bus := &memory{topics: map[string]*namespace.TopicState{}, limit: 256 << 10}
	top := wanted(t)
	findings, err := top.Check(t.Context(), bus)
	if err != nil || len(findings) != 4 || slices.ContainsFunc(findings, func(f namespace.Finding) bool { return !f.Missing }) {
		t.Errorf("an empty namespace: %v, %v", findings, err)
	}
	created, err := top.Provision(t.Context(), bus)
	if diff := cmp.Diff(everything, created); err != nil || diff != "" {
		t.Errorf("created: %v (-want +got)\n%s", err, diff)
	}
	if findings, err := top.Check(t.Context(), bus); err != nil || len(findings) != 0 {
		t.Errorf("after provisioning: %v, %v", findings, err)
	}
	if created, err := top.Provision(t.Context(), bus); err != nil || len(created) != 0 {
		t.Errorf("a second time it creates %v, %v", created, err)
	}
}

// A namespace answers 409 both while another change is in progress and for an entity that
// exists. Only reading the entity tells which of the two it is.
func TestProvision_RetriesWhileAnotherChangeIsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bus := &memory{topics: map[string]*namespace.TopicState{}, busy: 5}
		created, err := wanted(t).Provision(t.Context(), bus)
		if diff := cmp.Diff(everything, created); err != nil || diff != "" {
			t.Errorf("created: %v (-want +got)\n%s", err, diff)
		}

		bus = &memory{topics: map[string]*namespace.TopicState{}, busy: 3, rival: true}
		created, err = wanted(t).Provision(t.Context(), bus)
		if diff := cmp.Diff(everything[3:], created); err != nil || diff != "" {
			t.Errorf("created beside another process: %v (-want +got)\n%s", err, diff)
		}

		bus = &memory{topics: map[string]*namespace.TopicState{}, busy: 1000}
		created, err = wanted(t).Provision(t.Context(), bus)
		if !errors.Is(err, namespace.ErrConflict) || len(created) != 0 {
			t.Errorf("a change that never ends: %v, %v", created, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := wanted(t).Provision(ctx, bus); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a deadline while it waits: %v", err)
		}
	})
}

// sound returns a topic's state without fault, for a test to change.
func sound(change func(*namespace.TopicState)) namespace.TopicState {
	state := namespace.TopicState{
		Active: true, Deduplicates: true, Window: time.Hour, Subscriptions: []namespace.SubscriptionState{
			{Name: "ocr", Active: true, Lock: time.Minute, Rules: []namespace.Rule{takes(map[string]any{"service": "ocr"})}},
			{Name: "embed", Active: true, Lock: time.Minute, Rules: []namespace.Rule{takes(map[string]any{"service": "embed"})}},
			{Name: "audit", Active: true, Lock: time.Second, Rules: []namespace.Rule{{Name: "none", SQL: namespace.Nothing}}},
		},
	}
	change(&state)
	return state
}

func TestCheck_ReportsWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*namespace.TopicState)
		want   string // Empty if nothing is wrong.
	}{
		"nothing":  {func(*namespace.TopicState) {}, ""},
		"swallows": {func(s *namespace.TopicState) { s.Subscriptions = nil }, "wrong: bus-p0: the topic has no subscription, so every message is lost"},
		"disabled": {func(s *namespace.TopicState) { s.Active = false }, "wrong: bus-p0: the topic is disabled"},
		"duplicates": {
			func(s *namespace.TopicState) { s.Deduplicates = false }, "warning: bus-p0: the topic does not detect duplicates",
		},
		"short window": {
			func(s *namespace.TopicState) { s.Window = time.Minute },
			"warning: bus-p0: duplicates are detected for 1m0s, but a directive may be resent for 10m0s",
		},
		"small messages": {
			func(s *namespace.TopicState) { s.MessageBytes = 1024 },
			"wrong: bus-p0: messages may have 1024 bytes, but directives have up to 200000: lower LUCIUS_MAX_PAYLOAD_BYTES",
		},
		"idle subscription": {
			func(s *namespace.TopicState) { s.Subscriptions[2].Active = false }, "warning: bus-p0/audit: the subscription is disabled",
		},
		"a disabled subscription of a service": {
			func(s *namespace.TopicState) { s.Subscriptions[0].Active = false },
			"wrong: bus-p0/ocr: the subscription is disabled, and no other takes these messages",
		},
		"a disabled subscription next to another": {
			func(s *namespace.TopicState) {
				second := s.Subscriptions[0]
				second.Name, second.Active = "second", false
				s.Subscriptions = append(s.Subscriptions, second)
			},
			"warning: bus-p0/second: the subscription is disabled",
		},
		"a service without a subscription": {
			func(s *namespace.TopicState) { s.Subscriptions = s.Subscriptions[1:] },
			"wrong: bus-p0/ocr: no subscription takes the directives of service ocr (step types OCR), so each is lost silently; add a subscription",
		},
		"a filter that lets nothing through": {
			func(s *namespace.TopicState) { s.Subscriptions[0].Rules[0].Properties["service"] = "OCR" },
			`wrong: bus-p0/ocr: no subscription takes the directives of service ocr (step types OCR), so each is lost silently; ` +
				`this one has other rules (rule: service = "OCR"): add one with the correlation filter service = 'ocr'`,
		},
		"a filter that cannot be judged": {
			func(s *namespace.TopicState) {
				s.Subscriptions[0].Rules = []namespace.Rule{{Name: "r", SQL: "service = 'ocr' AND tenant_id = 'a'"}}
			},
			"warning: bus-p0/ocr: only filters that take some of the directives of service ocr (step types OCR)",
		},
		"a filter that lets everything through": {
			func(s *namespace.TopicState) {
				s.Subscriptions[0].Rules = append(s.Subscriptions[0].Rules, namespace.Rule{Name: "$Default", SQL: namespace.Everything})
			},
			`warning: bus-p0/ocr: it takes the directives of embed as well (rule: service = "ocr"; $Default: 1=1)`,
		},
		"sessions": {
			func(s *namespace.TopicState) { s.Subscriptions[0].Sessions = true },
			"wrong: bus-p0/ocr: it requires sessions, and messages here have no session id",
		},
		"sessions of others": {func(s *namespace.TopicState) { s.Subscriptions[2].Sessions = true }, ""},
		"short locks": {
			func(s *namespace.TopicState) { s.Subscriptions[1].Lock = 10 * time.Second },
			"warning: bus-p0/embed: its locks last 10s, less than the ACK timeout of 30s",
		},
		"messages of the topic expire": {
			func(s *namespace.TopicState) { s.Messages = 20 * time.Second },
			"wrong: bus-p0: messages expire after 20s, before the ACK timeout of 30s, so a directive that waits for its worker is lost " +
				"with its attempt: set the default time to live to at least 30s",
		},
		"messages of the subscription expire": {
			func(s *namespace.TopicState) { s.Subscriptions[0].Messages = time.Second },
			"wrong: bus-p0/ocr: messages expire after 1s",
		},
		"deletes itself": {
			func(s *namespace.TopicState) { s.Subscriptions[0].Idle = time.Hour },
			"warning: bus-p0/ocr: it is deleted after 1h0m0s without use",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			top := wanted(t)
			top.Topics = top.Topics[:1]
			state := sound(test.change)
			bus := &memory{topics: map[string]*namespace.TopicState{"bus-p0": &state}, limit: 256 << 10}
			expectFinding(t, top, bus, test.want)
		})
	}
}

// expectFinding checks that there is one finding, which begins so, or none.
func expectFinding(t *testing.T, top *namespace.Topology, bus namespace.Admin, want string) {
	t.Helper()
	findings, err := top.Check(t.Context(), bus)
	if err != nil || len(findings) != min(len(want), 1) || want != "" && !strings.HasPrefix(findings[0].String(), want) {
		t.Errorf("%v, %v, want %q", findings, err, want)
	}
}

func TestCheck_JudgesReplyTopics(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*namespace.TopicState)
		want   string
	}{
		"nothing": {func(*namespace.TopicState) {}, ""},
		"the subscription of another": {
			func(s *namespace.TopicState) { s.Subscriptions[0].Name = "other" }, "wrong: replies-p0/lucius: the subscription is missing",
		},
		"disabled": {
			func(s *namespace.TopicState) { s.Subscriptions[0].Active = false }, "wrong: replies-p0/lucius: the subscription is disabled",
		},
		"sessions": {func(s *namespace.TopicState) { s.Subscriptions[0].Sessions = true }, "wrong: replies-p0/lucius: it requires sessions"},
		"short locks": {
			func(s *namespace.TopicState) { s.Subscriptions[0].Lock = 5 * time.Second },
			"warning: replies-p0/lucius: its locks last 5s, too short for Lucius to renew them: set the lock duration to at least 30s",
		},
		"replies expire": {
			func(s *namespace.TopicState) { s.Messages = time.Minute },
			"warning: replies-p0: messages expire after 1m0s, before the lease of 15m0s ends",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			top := wanted(t)
			top.Topics = top.Topics[2:3]
			state := namespace.TopicState{Active: true, Subscriptions: []namespace.SubscriptionState{{
				Name: "lucius", Active: true, Lock: time.Minute, Rules: []namespace.Rule{{Name: "$Default", SQL: namespace.Everything}},
			}}}
			test.change(&state)
			expectFinding(t, top, &memory{topics: map[string]*namespace.TopicState{"replies-p0": &state}}, test.want)
		})
	}
}

// Whether a directive of service ocr and step type OCR passes, or that this cannot be
// told.
func TestFiltersOfSubscriptions(t *testing.T) {
	t.Parallel()
	const lost, unsure = "wrong: bus-p0/ocr: no subscription takes", "warning: bus-p0/ocr: only filters that take some"
	sql := func(expression string) namespace.Rule { return namespace.Rule{Name: "r", SQL: expression} }
	system := func(name, value string) namespace.Rule {
		return namespace.Rule{Name: "r", System: map[string]string{name: value}}
	}
	for name, test := range map[string]struct {
		rule namespace.Rule
		want string
	}{
		"service":                          {takes(map[string]any{"service": "ocr"}), ""},
		"service and type":                 {takes(map[string]any{"service": "ocr", "step_type": "OCR"}), ""},
		"another step type":                {takes(map[string]any{"service": "ocr", "step_type": "SCAN"}), lost},
		"one tenant":                       {takes(map[string]any{"service": "ocr", "tenant_id": "a"}), unsure},
		"a property that no directive has": {takes(map[string]any{"Service": "ocr"}), lost},
		"a number":                         {takes(map[string]any{"service": 1}), lost},
		"subject":                          {system("Subject", "OCR"), ""},
		"another subject":                  {system("Subject", "ocr"), lost},
		"content type":                     {namespace.Rule{Properties: map[string]any{"service": "ocr"}, System: map[string]string{"ContentType": "application/json"}}, ""},
		"one command":                      {system("CorrelationID", "c1"), unsure},
		"a session":                        {system("SessionID", "s1"), lost},
		"sql nothing":                      {sql("1 = 0"), lost},
		"sql equal":                        {sql(" user.Service='ocr' "), ""},
		"sql unequal":                      {sql("service = 'Ocr'"), lost},
		"sql label":                        {sql("sys.Label = 'OCR'"), ""},
		"sql list":                         {sql("[service] in ('a', 'ocr')"), ""},
		"sql list of others":               {sql("service IN ('a','b')"), lost},
		"sql of more":                      {sql("service LIKE 'o%'"), unsure},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			top := wanted(t)
			top.Topics = top.Topics[:1]
			state := sound(func(s *namespace.TopicState) {
				s.Subscriptions[0].Rules, s.Subscriptions[0].Lock = []namespace.Rule{test.rule}, 0
			})
			expectFinding(t, top, &memory{topics: map[string]*namespace.TopicState{"bus-p0": &state}}, test.want)
		})
	}
}

// Services may name their subscriptions as they like: one that takes a service's
// directives is enough.
func TestProvision_LeavesWhatIsTakenAlone(t *testing.T) {
	t.Parallel()
	state := sound(func(s *namespace.TopicState) {
		s.Subscriptions = []namespace.SubscriptionState{
			{Name: "all-of-them", Active: true, Lock: time.Minute, Rules: []namespace.Rule{takes(map[string]any{"service": "ocr"})}},
		}
	})
	bus := &memory{topics: map[string]*namespace.TopicState{"bus-p0": &state}}
	top := wanted(t)
	top.Topics = top.Topics[:1]
	created, err := top.Provision(t.Context(), bus)
	if diff := cmp.Diff([]string{"bus-p0/embed"}, created); err != nil || diff != "" {
		t.Errorf("created: %v (-want +got)\n%s", err, diff)
	}
	expectFinding(t, top, bus, "")
}

func TestNew_RejectsNamesThatServiceBusWouldRefuse(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]namespace.Config{
		"Lanes is 0":                  {TopicPrefix: "p"},
		`service "o/c"`:               {TopicPrefix: "p", Lanes: 1, Directives: []namespace.Directive{{Service: "o/c"}}},
		`cannot be the name of a top`: {TopicPrefix: "p/", Lanes: 1},
		`cannot be the name of a sub`: {TopicPrefix: "p", Lanes: 1, ReplyPrefix: "r", ReplySubscription: ""},
		`for directives and for rep`:  {TopicPrefix: "p", Lanes: 1, ReplyPrefix: "p", ReplySubscription: "s"},
	} {
		if _, err := namespace.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", cfg, err, want)
		}
	}
}

func TestNamespaceErrorsNameTheTopic(t *testing.T) {
	t.Parallel()
	bus := &memory{topics: map[string]*namespace.TopicState{}, err: namespace.ErrForbidden}
	if _, err := wanted(t).Check(t.Context(), bus); !errors.Is(err, namespace.ErrForbidden) {
		t.Errorf("check: %v", err)
	}
	_, err := wanted(t).Provision(t.Context(), bus)
	if !errors.Is(err, namespace.ErrForbidden) || !strings.Contains(err.Error(), "bus-p0") {
		t.Errorf("provision: %v", err)
	}
}
