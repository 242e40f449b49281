package namespace

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

// Created subscriptions lock a delivered message for that long, dead-letter it after
// that many deliveries, and select by the rule of that name.
const (
	lockDuration     = "PT1M"
	maxDeliveryCount = 10
	ruleName         = "service"
)

// pageSize is how many entities an answer lists. The SDK takes a shorter page for the
// last one.
const pageSize = 100

// standardBytes is the largest message in a namespace that is not Premium.
const standardBytes = 256 << 10

// Options names a namespace and the credential to manage it.
type Options struct {
	// Connection is a connection string with the right to manage. Required, unless
	// Namespace is set.
	Connection string
	// Namespace is the host name, such as example.servicebus.windows.net, for use
	// with azidentity's DefaultAzureCredential. Required, unless Connection is set.
	Namespace string
}

// namespace manages a namespace over its REST interface.
type namespace struct {
	client   *admin.Client
	emulator bool
}

// Open returns the management side of a namespace. It does not connect yet. For an
// emulator the connection string names the address of its management interface, which
// is not that of its messages.
func Open(options Options) (Admin, error) {
	if options.Connection != "" {
		var client admin.ClientOptions
		emulator := Emulator(options.Connection)
		if emulator {
			client.Transport = plainTransport{&http.Client{Timeout: 30 * time.Second}}
		}
		opened, err := admin.NewClientFromConnectionString(options.Connection, &client)
		if err != nil {
			// Its text may hold the key.
			return nil, errors.New("the connection string of the namespace cannot be used")
		}
		return &namespace{opened, emulator}, nil
	}
	credential, err := azidentity.NewDefaultAzureCredential(nil)
	if err != nil {
		return nil, fmt.Errorf("find a credential for namespace %s: %w", options.Namespace, err)
	}
	opened, err := admin.NewClient(options.Namespace, credential, nil)
	if err != nil {
		return nil, fmt.Errorf("namespace %s: %w", options.Namespace, err)
	}
	return &namespace{opened, false}, nil
}

// Emulator reports whether a connection string is that of an emulator.
func Emulator(connection string) bool {
	for part := range strings.SplitSeq(connection, ";") {
		name, value, _ := strings.Cut(part, "=")
		if on, err := strconv.ParseBool(value); err == nil && on && strings.EqualFold(name, "UseDevelopmentEmulator") {
			return true
		}
	}
	return false
}

// plainTransport sends requests without TLS, which emulators do not have. The SDK knows
// no other way.
type plainTransport struct{ client *http.Client }

// Do implements the SDK's transport.
func (t plainTransport) Do(req *http.Request) (*http.Response, error) {
	plain := req.Clone(req.Context())
	plain.URL.Scheme = "http"
	return t.client.Do(plain) //nolint:gosec // The address is the operator's own setting.
}

func (n *namespace) Limits(ctx context.Context) (int, error) {
	answer, err := n.client.GetNamespaceProperties(ctx, nil)
	switch err = plain(err); {
	case n.emulator && err != nil && !errors.Is(err, ErrForbidden):
		return standardBytes, nil // It may know nothing of its tier.
	case err != nil:
		return 0, err
	case answer.SKU == "Premium":
		return 0, nil // Each topic has its own limit.
	}
	return standardBytes, nil
}

func (n *namespace) Topic(ctx context.Context, name string) (*TopicState, error) {
	answer, err := n.client.GetTopic(ctx, name, nil)
	if err != nil || answer == nil {
		return nil, plain(err)
	}
	window, err := parsePeriod(value(answer.DuplicateDetectionHistoryTimeWindow))
	if err != nil {
		return nil, err
	}
	life, err := lifetime(answer.DefaultMessageTimeToLive, answer.AutoDeleteOnIdle)
	if err != nil {
		return nil, err
	}
	state := &TopicState{
		Active: active(answer.Status), Deduplicates: value(answer.RequiresDuplicateDetection), Window: window,
		MessageBytes: int(value(answer.MaxMessageSizeInKilobytes)) << 10, Lifetime: life,
	}
	pager := n.client.NewListSubscriptionsPager(name, &admin.ListSubscriptionsOptions{MaxPageSize: pageSize})
	for pager.More() {
		page, err := pager.NextPage(ctx)
		if err != nil {
			return nil, plain(err)
		}
		for i := range page.Subscriptions {
			subscription, err := n.subscription(ctx, &page.Subscriptions[i])
			if err != nil {
				return nil, fmt.Errorf("subscription %s: %w", page.Subscriptions[i].SubscriptionName, err)
			}
			state.Subscriptions = append(state.Subscriptions, *subscription)
		}
	}
	return state, nil
}

// subscription returns the present state of a subscription, with its rules.
func (n *namespace) subscription(ctx context.Context, s *admin.SubscriptionPropertiesItem) (*SubscriptionState, error) {
	lock, err := parsePeriod(value(s.LockDuration))
	if err != nil {
		return nil, err
	}
	life, err := lifetime(s.DefaultMessageTimeToLive, s.AutoDeleteOnIdle)
	if err != nil {
		return nil, err
	}
	state := &SubscriptionState{
		Name: s.SubscriptionName, Active: active(s.Status), Sessions: value(s.RequiresSession), Lock: lock, Lifetime: life,
	}
	pager := n.client.NewListRulesPager(s.TopicName, s.SubscriptionName, &admin.ListRulesOptions{MaxPageSize: pageSize})
	for pager.More() {
		page, err := pager.NextPage(ctx)
		if err != nil {
			return nil, plain(err)
		}
		for _, r := range page.Rules {
			state.Rules = append(state.Rules, ruleOf(r.Name, r.Filter))
		}
	}
	return state, nil
}

// ruleOf converts a rule to the type of this package.
func ruleOf(name string, filter admin.RuleFilter) Rule {
	rule := Rule{Name: name}
	switch f := filter.(type) {
	case *admin.TrueFilter:
		rule.SQL = Everything
	case *admin.FalseFilter:
		rule.SQL = Nothing
	case *admin.SQLFilter:
		rule.SQL = f.Expression
	case *admin.CorrelationFilter:
		rule.Properties, rule.System = f.ApplicationProperties, map[string]string{}
		for name, p := range map[string]*string{
			"Subject": f.Subject, "ContentType": f.ContentType, "CorrelationID": f.CorrelationID, "MessageID": f.MessageID,
			"ReplyTo": f.ReplyTo, "ReplyToSessionID": f.ReplyToSessionID, "SessionID": f.SessionID, "To": f.To,
		} {
			if p != nil {
				rule.System[name] = *p
			}
		}
	default:
		rule.SQL = fmt.Sprintf("(a filter of an unknown type: %T)", filter)
	}
	return rule
}

// lifetime parses the default time to live, and the time after which an idle entity is
// deleted.
func lifetime(messages, idle *string) (l Lifetime, err error) {
	if l.Messages, err = parsePeriod(value(messages)); err != nil {
		return Lifetime{}, err
	}
	l.Idle, err = parsePeriod(value(idle))
	return l, err
}

func (n *namespace) CreateTopic(ctx context.Context, topic *Topic) error {
	properties := &admin.TopicProperties{RequiresDuplicateDetection: new(topic.Window > 0)}
	if topic.Window > 0 {
		properties.DuplicateDetectionHistoryTimeWindow = new(period(topic.Window))
	}
	_, err := n.client.CreateTopic(ctx, topic.Name, &admin.CreateTopicOptions{Properties: properties})
	return plain(err)
}

func (n *namespace) CreateSubscription(ctx context.Context, topic string, subscription Subscription) error {
	properties := &admin.SubscriptionProperties{
		LockDuration: new(lockDuration), MaxDeliveryCount: new(int32(maxDeliveryCount)),
	}
	if subscription.Service != "" {
		properties.DefaultRule = &admin.RuleProperties{
			Name:   ruleName,
			Filter: &admin.CorrelationFilter{ApplicationProperties: map[string]any{"service": subscription.Service}},
		}
	}
	_, err := n.client.CreateSubscription(ctx, topic, subscription.Name, &admin.CreateSubscriptionOptions{Properties: properties})
	return plain(err)
}

// plain returns the error on one line, without the SDK's dump of the response.
func plain(err error) error {
	answer, ok := errors.AsType[*azcore.ResponseError](err)
	switch {
	case err == nil:
		return nil
	case !ok:
		return err
	case answer.StatusCode == http.StatusUnauthorized, answer.StatusCode == http.StatusForbidden:
		return ErrForbidden
	case answer.StatusCode == http.StatusConflict:
		return ErrConflict
	default:
		return fmt.Errorf("the namespace answers %d %s", answer.StatusCode, http.StatusText(answer.StatusCode))
	}
}

// active reports whether an entity can be used. One without a status can.
func active(status *admin.EntityStatus) bool {
	return status == nil || *status == admin.EntityStatusActive
}

// value returns what a pointer points at, or the zero value.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// periods matches an ISO 8601 period as the namespace writes it: days and shorter
// units, such as PT10M or P10675199DT2H48M5.4775807S.
var periods = regexp.MustCompile(`^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.\d+)?S)?)?$`)

// period writes a duration of whole seconds as an ISO 8601 period.
func period(d time.Duration) string { return fmt.Sprintf("PT%dS", int(d.Seconds())) }

// forever is the longest duration.
const forever = time.Duration(math.MaxInt64)

// parsePeriod parses a period. An empty text is 0, and one that is too long for a
// duration is the longest duration; fractions of a second are dropped.
func parsePeriod(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	parts := periods.FindStringSubmatch(text)
	if parts == nil {
		return 0, fmt.Errorf("%q is not a period", text)
	}
	total := time.Duration(0)
	for i, unit := range []time.Duration{24 * time.Hour, time.Hour, time.Minute, time.Second} {
		n, _ := strconv.ParseInt(parts[i+1], 10, 64) // Only digits: none give 0, too many the largest number.
		if time.Duration(n) > (math.MaxInt64-total)/unit {
			return forever, nil
		}
		total += time.Duration(n) * unit
	}
	return total, nil
}
