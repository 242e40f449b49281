package namespace

import (
	"encoding/json"
	"fmt"
	"time"
)

// Limits of Microsoft's emulator, which differ from those of a namespace.
const (
	emulatorTopics        = 50
	emulatorSubscriptions = 50 // of a topic
	emulatorWindow        = 5 * time.Minute
	emulatorTimeToLive    = time.Hour
)

// properties are the properties of an entity, by the emulator's names.
type properties map[string]any

// emulatorTopic, emulatorSubscription and emulatorRule are entities in the emulator's
// configuration.
type (
	emulatorTopic struct {
		Name          string
		Properties    properties
		Subscriptions []emulatorSubscription
	}
	emulatorSubscription struct {
		Name       string
		Properties properties
		Rules      []emulatorRule `json:",omitempty"`
	}
	emulatorRule struct {
		Name       string
		Properties properties
	}
)

// EmulatorConfig returns the Config.json with which Microsoft's Service Bus emulator has
// these topics and subscriptions. The error names the limit of the emulator that they
// exceed.
func (t *Topology) EmulatorConfig() ([]byte, error) {
	switch services := len(t.services()); {
	case len(t.Topics) > emulatorTopics:
		return nil, fmt.Errorf("the emulator has room for %d topics, and these lanes need %d: lower LUCIUS_SERVICEBUS_LANES",
			emulatorTopics, len(t.Topics))
	case services > emulatorSubscriptions:
		return nil, fmt.Errorf("the emulator has room for %d subscriptions of a topic, and the protocols have %d services",
			emulatorSubscriptions, services)
	case services == 0:
		return nil, fmt.Errorf("the emulator takes no topic without a subscription, and no protocol names a service")
	case t.MessageBytes > standardBytes:
		return nil, fmt.Errorf("the emulator takes messages of %d bytes, and directives have up to %d: lower LUCIUS_MAX_PAYLOAD_BYTES",
			standardBytes, t.MessageBytes)
	}
	topics := make([]emulatorTopic, len(t.Topics))
	for i := range t.Topics {
		topics[i] = t.Topics[i].forEmulator()
	}
	namespace := struct {
		Name   string
		Queues []string
		Topics []emulatorTopic
	}{"sbemulatorns", []string{}, topics} // It knows no other name.
	config := map[string]any{"UserConfig": map[string]any{
		"Namespaces": []any{namespace}, "Logging": map[string]string{"Type": "Console"},
	}}
	text, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the emulator's configuration: %w", err)
	}
	return append(text, '\n'), nil
}

// forEmulator converts the topic to the emulator's configuration.
func (t *Topic) forEmulator() emulatorTopic {
	topic := emulatorTopic{Name: t.Name, Properties: properties{
		"DefaultMessageTimeToLive": period(emulatorTimeToLive), "RequiresDuplicateDetection": t.directives(),
	}}
	if t.directives() {
		topic.Properties["DuplicateDetectionHistoryTimeWindow"] = period(min(t.Window, emulatorWindow))
	}
	for _, s := range t.Subscriptions {
		subscription := emulatorSubscription{Name: s.Name, Properties: properties{
			"DefaultMessageTimeToLive": period(emulatorTimeToLive), "LockDuration": lockDuration,
			"MaxDeliveryCount": maxDeliveryCount, "RequiresSession": false,
		}}
		if s.Service != "" {
			subscription.Rules = []emulatorRule{{Name: ruleName, Properties: properties{
				"FilterType":        "Correlation",
				"CorrelationFilter": properties{"Properties": map[string]string{"service": s.Service}},
			}}}
		}
		topic.Subscriptions = append(topic.Subscriptions, subscription)
	}
	return topic
}
