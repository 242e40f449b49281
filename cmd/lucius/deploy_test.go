//go:build !nodrivers

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/internal/config"
)

// templates returns the text of all templates.
func templates(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("../../deploy/azure/*.bicep")
	if err != nil || len(files) == 0 {
		t.Fatalf("no templates: %v", err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

// The template creates the tables and topics that the program expects by default: with
// another name they would be unused.
func TestDeploy_CreatesWhatTheProgramExpects(t *testing.T) {
	t.Parallel()
	text := templates(t)
	var expected []string
	for _, layout := range []string{config.BackendLedger, config.BackendTable} {
		loaded, err := config.LoadArgs([]string{
			"--storage-backend", layout, "--table-endpoint", "https://example.table.core.windows.net", "--bus", config.BusServiceBus,
			"--servicebus-namespace", "example.servicebus.windows.net", "--servicebus-replies", "true",
			"--protocols-dir", "../../protocols",
		}, nil)
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
		if !strings.Contains(text, want) {
			t.Errorf("the template has no %s", want)
		}
	}
}

// The replicas of the template start: each variable is a setting, and with values like the
// template's the configuration is valid. Without access control it is not.
func TestDeploy_StartsReplicasThatMayListen(t *testing.T) {
	t.Parallel()
	variables := map[string]string{}
	for _, found := range regexp.MustCompile(`(?m)\b(LUCIUS_[A-Z_]+): (?:'([^'$]*)')?|name: '(LUCIUS_ROLES)'`).
		FindAllStringSubmatch(templates(t), -1) {
		variables[found[1]+found[3]] = found[2]
	}
	for name, value := range map[string]string{
		"LUCIUS_ROLES": "api", "LUCIUS_STORAGE_BACKEND": config.BackendLedger, "LUCIUS_TABLE_ENDPOINT": "https://a.table.core.windows.net/",
		"LUCIUS_SERVICEBUS_NAMESPACE": "a.servicebus.windows.net", "LUCIUS_SERVICEBUS_LANES": "16", "LUCIUS_SERVICEBUS_REPLIES": "true",
		"LUCIUS_OIDC_ISSUER": "https://login.example.org/v2.0", "LUCIUS_OIDC_AUDIENCE": "api://lucius",
	} {
		if _, set := variables[name]; !set {
			t.Errorf("the template does not set %s", name)
		}
		variables[name] = value
	}
	delete(variables, "LUCIUS_LEASE_DURATION") // the template's example of an additional variable
	load := func() (*config.Loaded, error) {
		loaded, err := config.Load(nil, entries(variables))
		return loaded, err
	}
	loaded, err := load()
	if err != nil {
		t.Fatal(err)
	}
	printed := &output{}
	if err := loaded.Print(printed); err != nil {
		t.Fatal(err)
	}
	for name, value := range variables {
		if !strings.Contains(printed.String(), name+"="+value+"\n") {
			t.Errorf("%s of the template is no setting, or is not %q:\n%s", name, value, printed)
		}
	}
	delete(variables, "LUCIUS_AUTH_FILE")
	delete(variables, "LUCIUS_OIDC_ISSUER")
	delete(variables, "LUCIUS_OIDC_AUDIENCE")
	if _, err := load(); err == nil || !strings.Contains(err.Error(), "LUCIUS_LISTEN_ADDR is \":8080\"") {
		t.Errorf("without access control: %v", err)
	}
}
