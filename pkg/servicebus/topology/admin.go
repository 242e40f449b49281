package topology

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

// The subscription that Lucius reads holds a message for that long while it is
// handled, and gives up on one that was handed out that often.
const (
	lockDuration     = "PT1M"
	maxDeliveryCount = 10
)

// standardBytes is what a message may have in a namespace that is not Premium.
const standardBytes = 256 << 10

// NamespaceOptions name a namespace.
type NamespaceOptions struct {
	// Connection is a connection string with the right to manage. Required, unless
	// Namespace is set.
	Connection string
	// Namespace is the host name, such as example.servicebus.windows.net, to be
	// managed with azidentity's DefaultAzureCredential. Required, unless Connection
	// is set.
	Namespace string
	// Transport carries the requests. Optional. Defaults to the SDK's.
	Transport interface {
		Do(*http.Request) (*http.Response, error)
	}
}

// namespace manages a namespace over its REST interface.
type namespace struct{ client *admin.Client }

// Open returns the management side of a namespace. Nothing is sent yet.
func Open(options NamespaceOptions) (Admin, error) {
	client := &admin.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: options.Transport}}
	if emulated(options.Connection) {
		return nil, errors.New("the connection string is that of an emulator (UseDevelopmentEmulator), which cannot be managed")
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

// emulated reports whether a connection string is that of an emulator. Those speak
// AMQP alone; a request would fail after many tries by something about TLS.
func emulated(connection string) bool {
	for part := range strings.SplitSeq(connection, ";") {
		name, value, _ := strings.Cut(part, "=")
		if on, err := strconv.ParseBool(value); err == nil && on && strings.EqualFold(name, "UseDevelopmentEmulator") {
			return true
		}
	}
	return false
}

// Limits implements [Admin].
func (n *namespace) Limits(ctx context.Context) (int, error) {
	answer, err := n.client.GetNamespaceProperties(ctx, nil)
	if err != nil {
		return 0, plain(err)
	}
	if answer.SKU == "Premium" {
		return 0, nil // Each topic says it for itself.
	}
	return standardBytes, nil
}

// Topic implements [Admin].
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

// CreateTopic implements [Admin].
func (n *namespace) CreateTopic(ctx context.Context, topic *Topic) error {
	properties := &admin.TopicProperties{RequiresDuplicateDetection: new(topic.Window > 0)}
	if topic.Window > 0 {
		properties.DuplicateDetectionHistoryTimeWindow = new(formatPeriod(topic.Window))
	}
	_, err := n.client.CreateTopic(ctx, topic.Name, &admin.CreateTopicOptions{Properties: properties})
	return thereIsFine(err)
}

// CreateSubscription implements [Admin].
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
	return thereIsFine(err)
}

// thereIsFine forgives that what is to be created is there.
func thereIsFine(err error) error {
	if answer, ok := errors.AsType[*azcore.ResponseError](err); ok && answer.StatusCode == http.StatusConflict {
		return nil
	}
	return plain(err)
}

// plain returns the error in a line of its own.
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

// active reports whether an entity can be used; one that does not say can.
func active(status *admin.EntityStatus) bool {
	return status == nil || *status == admin.EntityStatusActive
}

// value is what a pointer points at, or the zero value.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// formatPeriod writes a period as the namespace wants it, in seconds.
func formatPeriod(d time.Duration) string { return fmt.Sprintf("PT%dS", int(d.Seconds())) }
