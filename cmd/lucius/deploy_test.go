package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/internal/config"
)

// What the template creates is what the program expects by default: a name that
// differs would create an unused table or topic.
func TestDeploy_CreatesWhatTheProgramExpects(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../deploy/azure/main.bicep")
	if err != nil {
		t.Fatal(err)
	}
	var expected []string
	for _, layout := range []string{config.BackendLedger, config.BackendTable} {
		loaded, _, err := config.Load([]string{
			"--storage-backend", layout, "--table-endpoint", "https://example.table.core.windows.net", "--bus", config.BusServiceBus,
			"--servicebus-namespace", "example.servicebus.windows.net", "--servicebus-replies", "true",
			"--protocols-dir", "../../protocols",
		}, func(string) (string, bool) { return "", false }, &output{})
		if err != nil {
			t.Fatal(err)
		}
		topics, err := topicsOf(&loaded.Config)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range append(tableNames(&loaded.Config), loaded.TopicPrefix, loaded.ServiceBus.ReplyPrefix, loaded.ServiceBus.ReplySubscription) {
			expected = append(expected, "'"+name+"'")
		}
		expected = append(expected, fmt.Sprintf("param lanes int = %d\n", loaded.Lanes),
			fmt.Sprintf("duplicateDetectionHistoryTimeWindow: 'PT%dM'\n", int(topics.Topics[0].Window.Minutes())))
	}
	for _, want := range expected {
		if !strings.Contains(string(text), want) {
			t.Errorf("the template has no %s", want)
		}
	}
}
