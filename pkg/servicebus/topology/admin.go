package topology

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

// Created subscriptions lock a delivered message for that long, and dead-letter it
// after that many deliveries.
const (
	lockDuration     = "PT1M"
	maxDeliveryCount = 10
)

// standardBytes is the largest message in a namespace that is not Premium.
const standardBytes = 256 << 10

// NamespaceOptions names a namespace and the credential to manage it.
type NamespaceOptions struct {
	// Connection is a connection string with the right to manage. Required, unless
	// Namespace is set.
	Connection string
	// Namespace is the host name, such as example.servicebus.windows.net, for use
	// with azidentity's DefaultAzureCredential. Required, unless Connection is set.
	Namespace string
	// Transport carries the requests. Optional. Defaults to the SDK's.
	Transport interface {
		Do(*http.Request) (*http.Response, error)
	}
}

// namespace manages a namespace over its REST interface.
type namespace struct{ client *admin.Client }

// Open returns the management side of a namespace. It does not connect yet.
func Open(options NamespaceOptions) (Admin, error) {
	client := &admin.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: options.Transport}}
	for part := range strings.SplitSeq(options.Connection, ";") {
		name, value, _ := strings.Cut(part, "=")
		if on, err := strconv.ParseBool(value); err == nil && on && strings.EqualFold(name, "UseDevelopmentEmulator") {
			// Emulators speak only AMQP; a request would fail after many tries with an
			// error about TLS.
			return nil, errors.New("the connection string is that of an emulator (UseDevelopmentEmulator), which cannot be managed")
		}
	}
	if options.Connection != "" {
		opened, err := admin.NewClientFromConnectionString(options.Connection, client)
		if err != nil {
			// Its text may hold the key.
			return nil, errors.New("the connection string of the namespace cannot be used")
		}
		return &namespace{opened}, nil
	}
	credential, err := azidentity.NewDefaultAzureCredential(nil)
	if err != nil {
		return nil, fmt.Errorf("find a credential for namespace %s: %w", options.Namespace, err)
	}
	opened, err := admin.NewClient(options.Namespace, credential, client)
	if err != nil {
		return nil, fmt.Errorf("namespace %s: %w", options.Namespace, err)
	}
	return &namespace{opened}, nil
}

func (n *namespace) Limits(ctx context.Context) (int, error) {
	answer, err := n.client.GetNamespaceProperties(ctx, nil)
	if err != nil {
		return 0, plain(err)
	}
	if answer.SKU == "Premium" {
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
	state := &TopicState{
		Active: active(answer.Status), Deduplicates: value(answer.RequiresDuplicateDetection), Window: window,
		MessageBytes: int(value(answer.MaxMessageSizeInKilobytes)) << 10,
	}
	pager := n.client.NewListSubscriptionsPager(name, nil)
	for pager.More() {
		page, err := pager.NextPage(ctx)
		if err != nil {
			return nil, plain(err)
		}
		for i := range page.Subscriptions {
			s := &page.Subscriptions[i]
			state.Subscriptions = append(state.Subscriptions, SubscriptionState{
				Name: s.SubscriptionName, Active: active(s.Status),
			})
		}
	}
	return state, nil
}

func (n *namespace) CreateTopic(ctx context.Context, topic *Topic) error {
	properties := &admin.TopicProperties{RequiresDuplicateDetection: new(topic.Window > 0)}
	if topic.Window > 0 {
		properties.DuplicateDetectionHistoryTimeWindow = new(fmt.Sprintf("PT%dS", int(topic.Window.Seconds())))
	}
	_, err := n.client.CreateTopic(ctx, topic.Name, &admin.CreateTopicOptions{Properties: properties})
	return ignoreExisting(err)
}

func (n *namespace) CreateSubscription(ctx context.Context, topic string, subscription Subscription) error {
	properties := &admin.SubscriptionProperties{
		LockDuration: new(lockDuration), MaxDeliveryCount: new(int32(maxDeliveryCount)),
	}
	if subscription.Service != "" {
		properties.DefaultRule = &admin.RuleProperties{
			Name:   "service",
			Filter: &admin.CorrelationFilter{ApplicationProperties: map[string]any{"service": subscription.Service}},
		}
	}
	_, err := n.client.CreateSubscription(ctx, topic, subscription.Name, &admin.CreateSubscriptionOptions{Properties: properties})
	return ignoreExisting(err)
}

// ignoreExisting returns nil if the entity to be created exists already.
func ignoreExisting(err error) error {
	if answer, ok := errors.AsType[*azcore.ResponseError](err); ok && answer.StatusCode == http.StatusConflict {
		return nil
	}
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

// period matches an ISO 8601 period as the namespace writes it: days and shorter
// units, such as PT10M or P10675199DT2H48M5.4775807S.
var period = regexp.MustCompile(`^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.\d+)?S)?)?$`)

// parsePeriod parses a period. An empty text is 0, and one that is too long for a
// duration is the longest duration; fractions of a second are dropped.
func parsePeriod(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	parts := period.FindStringSubmatch(text)
	if parts == nil {
		return 0, fmt.Errorf("%q is not a period", text)
	}
	total := time.Duration(0)
	for i, unit := range []time.Duration{24 * time.Hour, time.Hour, time.Minute, time.Second} {
		n, _ := strconv.ParseInt(parts[i+1], 10, 64) // Only digits: none give 0, too many the largest number.
		if time.Duration(n) > (math.MaxInt64-total)/unit {
			return math.MaxInt64, nil
		}
		total += time.Duration(n) * unit
	}
	return total, nil
}
