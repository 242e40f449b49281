package config

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// stepTimeoutSeconds is the seeds' spelling of LUCIUS_STEP_RESULT_TIMEOUT.
const stepTimeoutSeconds = "LUCIUS_STEP_RESULT_TIMEOUT_SECONDS"

// Loaded is a configuration with the texts of its settings.
type Loaded struct {
	Config
	texts map[string]string
}

// Load reads flags, then the environment, then the defaults. The error names every
// invalid value and its source.
func Load(args []string, lookup func(string) (string, bool), usage io.Writer) (*Loaded, *flag.FlagSet, error) {
	loaded := &Loaded{texts: map[string]string{}}
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	flags.SetOutput(usage)
	all := settings()
	values := make([]*string, len(all))
	for i, s := range all {
		values[i] = flags.String(flagName(s.variable), "", fmt.Sprintf("%s (%s, default %q)", s.help, s.variable, s.standard))
	}
	flags.Bool("print-config", false, "print the configuration and exit")
	if err := flags.Parse(args); err != nil {
		return nil, flags, err
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })

	var problems []error
	for i, s := range all {
		text, from := s.text(*values[i], given[flagName(s.variable)], lookup)
		loaded.texts[s.variable] = text
		if err := s.set(&loaded.Config, text); err != nil {
			if secret(s.variable) {
				text = "(set)"
			}
			problems = append(problems, fmt.Errorf("%s is %q, %w", from, text, err))
		}
	}
	if len(problems) == 0 {
		problems = loaded.crossCheck()
	}
	return loaded, flags, errors.Join(problems...)
}

// text returns the setting's text and its source.
func (s *setting) text(flagValue string, given bool, lookup func(string) (string, bool)) (text, from string) {
	if given {
		return flagValue, "--" + flagName(s.variable)
	}
	if value, ok := lookup(s.variable); ok {
		return value, s.variable
	}
	if s.variable == "LUCIUS_STEP_RESULT_TIMEOUT" {
		if value, ok := lookup(stepTimeoutSeconds); ok {
			if n, err := strconv.Atoi(value); err == nil {
				return (time.Duration(n) * time.Second).String(), stepTimeoutSeconds
			}
			return value, stepTimeoutSeconds
		}
	}
	return s.standard, s.variable
}

// crossCheck compares settings with each other.
func (c *Config) crossCheck() []error {
	var problems []error
	if c.MaxPayloadBytes > c.MaxBodyBytes {
		problems = append(problems, fmt.Errorf("LUCIUS_MAX_PAYLOAD_BYTES (%d) must not be larger than LUCIUS_MAX_BODY_BYTES (%d)",
			c.MaxPayloadBytes, c.MaxBodyBytes))
	}
	if c.OnAzure() && (c.TableConnection == "") == (c.TableEndpoint == "") {
		problems = append(problems, fmt.Errorf(
			"LUCIUS_STORAGE_BACKEND %s needs LUCIUS_TABLE_CONNECTION or LUCIUS_TABLE_ENDPOINT, and not both", c.StorageBackend))
	}
	problems = append(problems, c.busCheck()...)
	problems = append(problems, c.Access.check(c.ListenAddr)...)
	if problem := c.Tables.distinct(); problem != nil {
		problems = append(problems, problem)
	}
	if c.StorageBackend == BackendMemory || c.StorageBackend == BackendLocal {
		for _, role := range []string{RoleAPI, RoleRelay, RoleSweeper} {
			if !c.Has(role) {
				problems = append(problems, fmt.Errorf(
					"LUCIUS_ROLES leaves out %q, but only one process can use LUCIUS_STORAGE_BACKEND %s",
					role, c.StorageBackend))
			}
		}
	}
	return problems
}

// busCheck compares the settings of the bus.
func (c *Config) busCheck() []error {
	var problems []error
	if c.Bus == BusServiceBus && (c.ServiceBus.Connection == "") == (c.ServiceBus.Namespace == "") {
		problems = append(problems, errors.New(
			"LUCIUS_BUS servicebus needs LUCIUS_SERVICEBUS_CONNECTION or LUCIUS_SERVICEBUS_NAMESPACE, and not both"))
	}
	if c.Bus != BusServiceBus && c.ServiceBus.Replies {
		problems = append(problems, errors.New("LUCIUS_SERVICEBUS_REPLIES needs LUCIUS_BUS servicebus"))
	}
	if topic := c.sharedTopic(); topic != "" {
		problems = append(problems, fmt.Errorf("LUCIUS_SERVICEBUS_TOPIC_PREFIX %q and LUCIUS_SERVICEBUS_REPLY_PREFIX %q "+
			"make %s a topic of directives and of replies", c.TopicPrefix, c.ServiceBus.ReplyPrefix, topic))
	}
	return problems
}

// sharedTopic returns a topic that directives and replies would share, empty if there
// is none.
func (c *Config) sharedTopic() string {
	if !c.ServiceBus.Replies {
		return ""
	}
	directives := map[string]bool{}
	for lane := range c.Lanes {
		directives[c.TopicPrefix+strconv.Itoa(lane)] = true
	}
	for lane := range c.Lanes {
		if topic := c.ServiceBus.ReplyPrefix + strconv.Itoa(lane); directives[topic] {
			return topic
		}
	}
	return ""
}

// distinct returns an error if two tables have the same name.
func (t Tables) distinct() error {
	names := []string{
		t.Ledger, t.Jobs, t.Steps, t.Outbox, t.Events, t.Idempotency, t.Index, t.Inflight, t.Schedule, t.Queue,
	}
	slices.Sort(names)
	for i := 1; i < len(names); i++ {
		if names[i] == names[i-1] {
			return fmt.Errorf("LUCIUS_…_TABLE: two tables are called %q", names[i])
		}
	}
	return nil
}

// flagName returns the flag of a variable.
func flagName(variable string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(variable, "LUCIUS_")), "_", "-")
}

// Print writes the configuration, one variable a line, without its secrets.
func (l *Loaded) Print(w io.Writer) error {
	for _, s := range settings() {
		text := l.texts[s.variable]
		if text != "" && secret(s.variable) {
			text = "(set)"
		}
		if _, err := fmt.Fprintf(w, "%s=%s\n", s.variable, text); err != nil {
			return fmt.Errorf("print the configuration: %w", err)
		}
	}
	return nil
}
