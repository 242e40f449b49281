package config

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/commands"
)

const (
	stepTimeout        = "LUCIUS_STEP_RESULT_TIMEOUT"
	stepTimeoutSeconds = "LUCIUS_STEP_RESULT_TIMEOUT_SECONDS" // The seeds' spelling of it.
)

// Loaded is a configuration with the texts of its settings.
type Loaded struct {
	Config
	texts map[string]string
	// given holds the variables that a flag or the environment set.
	given map[string]bool
}

// Flags registers the flag of each setting, in the order of the table.
func Flags(flags *pflag.FlagSet) {
	flags.SortFlags = false
	for _, s := range new(Config).settings() {
		flags.String(flagName(s.variable), s.standard, s.help+" ("+s.variable+")")
	}
}

// Load reads the flags that [Flags] registered, then the environment, which has entries
// NAME=value of which the last one counts, then the defaults. Flags may be nil: then it
// reads none. A namespace selects Service Bus, and a setting of the reply topics has them
// read. The error names every invalid value and its source, and every variable that is no
// setting.
func Load(flags *pflag.FlagSet, environment []string) (*Loaded, error) {
	loaded := &Loaded{texts: map[string]string{}, given: map[string]bool{}}
	variables := map[string]string{}
	for _, entry := range environment {
		if name, value, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "LUCIUS_") {
			variables[name] = value
		}
	}
	all := loaded.settings()
	problems := unknownVariables(variables, all)
	if err := takeSeconds(variables); err != nil {
		problems = append(problems, err)
	}
	from := map[string]string{}
	for i := range all {
		s := &all[i]
		loaded.texts[s.variable], from[s.variable], loaded.given[s.variable] = s.text(flags, variables)
	}
	loaded.selectBus()
	for i := range all {
		s := &all[i]
		text := loaded.texts[s.variable]
		if err := s.set(text); err != nil {
			problems = append(problems, fmt.Errorf("%s is %q, %s", from[s.variable], s.shown(text), Mask(err.Error())))
		}
	}
	if len(problems) == 0 {
		problems = loaded.crossCheck()
	}
	return loaded, errors.Join(problems...)
}

// LoadArgs parses arguments that are flags of settings, and loads them as [Load] does.
func LoadArgs(args, environment []string) (*Loaded, error) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	Flags(flags)
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	return Load(flags, environment)
}

// text returns the setting's text and its source, and whether it was given.
func (s *setting) text(flags *pflag.FlagSet, variables map[string]string) (text, from string, given bool) {
	if name := flagName(s.variable); flags != nil && flags.Changed(name) {
		return flags.Lookup(name).Value.String(), "--" + name, true
	}
	if value, ok := variables[s.variable]; ok {
		return value, s.variable, true
	}
	return s.standard, s.variable, false
}

// The settings that select the bus, and whether replies come over it too.
const (
	busVariable     = "LUCIUS_BUS"
	repliesVariable = "LUCIUS_SERVICEBUS_REPLIES"
)

var (
	namespaceVariables = []string{"LUCIUS_SERVICEBUS_CONNECTION", "LUCIUS_SERVICEBUS_NAMESPACE"}
	replyVariables     = []string{"LUCIUS_SERVICEBUS_REPLY_PREFIX", "LUCIUS_SERVICEBUS_REPLY_SUBSCRIPTION"}
)

// selectBus replaces the defaults of the bus and of replies if settings were given that
// only Service Bus and only reply topics use.
//
// Source: Option B, 21.1, which names those settings and no other switch.
func (l *Loaded) selectBus() {
	given := func(variable string) bool { return l.given[variable] && l.texts[variable] != "" }
	if !l.given[busVariable] && slices.ContainsFunc(namespaceVariables, given) {
		l.texts[busVariable] = BusServiceBus
	}
	if !l.given[repliesVariable] && l.texts[busVariable] == BusServiceBus && slices.ContainsFunc(replyVariables, given) {
		l.texts[repliesVariable] = "true"
	}
}

// takeSeconds makes the seeds' spelling of the step timeout the setting's own variable. The
// error says why it cannot.
func takeSeconds(variables map[string]string) error {
	value, given := variables[stepTimeoutSeconds]
	if !given {
		return nil
	}
	if _, both := variables[stepTimeout]; both {
		return fmt.Errorf("%s and %s are the same setting: unset one of them", stepTimeoutSeconds, stepTimeout)
	}
	seconds, err := integer(0, int(commands.MaxDuration/time.Second))(value)
	if err != nil {
		return fmt.Errorf("%s is %q, %w", stepTimeoutSeconds, Mask(value), err)
	}
	variables[stepTimeout] = (time.Duration(seconds) * time.Second).String()
	return nil
}

// crossCheck checks settings against each other.
func (c *Config) crossCheck() []error {
	var problems []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	refuse(c.MaxPayloadBytes > c.MaxBodyBytes, "LUCIUS_MAX_PAYLOAD_BYTES (%d) must not be larger than LUCIUS_MAX_BODY_BYTES (%d)",
		c.MaxPayloadBytes, c.MaxBodyBytes)
	refuse(c.StorageBackend == BackendPostgres && c.PostgresURL == "",
		"LUCIUS_STORAGE_BACKEND %s needs LUCIUS_POSTGRES_URL", c.StorageBackend)
	refuse(c.OnAzure() && (c.TableConnection == "") == (c.TableEndpoint == ""),
		"LUCIUS_STORAGE_BACKEND %s needs LUCIUS_TABLE_CONNECTION or LUCIUS_TABLE_ENDPOINT, and not both", c.StorageBackend)
	refuse(c.Bus == BusServiceBus && (c.ServiceBus.Connection == "") == (c.ServiceBus.Namespace == ""),
		"LUCIUS_BUS servicebus needs LUCIUS_SERVICEBUS_CONNECTION or LUCIUS_SERVICEBUS_NAMESPACE, and not both")
	refuse(c.Bus != BusServiceBus && c.ServiceBus.Replies, "LUCIUS_SERVICEBUS_REPLIES needs LUCIUS_BUS servicebus")
	topic := c.sharedTopic()
	refuse(topic != "", "LUCIUS_SERVICEBUS_TOPIC_PREFIX %q and LUCIUS_SERVICEBUS_REPLY_PREFIX %q "+
		"make %s a topic of directives and of replies", c.TopicPrefix, c.ServiceBus.ReplyPrefix, topic)

	err := auth.CheckListen(c.ListenAddr, c.Configured())
	refuse(err != nil, "LUCIUS_LISTEN_ADDR is %q, %w: set LUCIUS_AUTH_FILE or LUCIUS_OIDC_ISSUER", c.ListenAddr, err)
	err = auth.CheckListen(c.DebugAddr, false)
	refuse(c.DebugAddr != "" && err != nil, "LUCIUS_DEBUG_ADDR is %q, must be a loopback address as host:port", c.DebugAddr)
	refuse(c.OIDCIssuer != "" && c.OIDCAudience == "",
		"LUCIUS_OIDC_ISSUER needs LUCIUS_OIDC_AUDIENCE: otherwise its tokens for other services would be accepted")
	refuse(c.OIDCIssuer == "" && c.OIDCAudience != "", "LUCIUS_OIDC_AUDIENCE needs LUCIUS_OIDC_ISSUER")
	refuse(c.OIDCIssuer == "" && c.OIDCClientID != "", "LUCIUS_OIDC_CLIENT_ID needs LUCIUS_OIDC_ISSUER")
	refuse(c.OIDCClientID == "" && c.OIDCClientSecretFile != "", "LUCIUS_OIDC_CLIENT_SECRET_FILE needs LUCIUS_OIDC_CLIENT_ID")
	refuse((c.TLSCert == "") != (c.TLSKey == ""), "LUCIUS_TLS_CERT and LUCIUS_TLS_KEY are needed together")
	refuse(c.TLSClientCA != "" && c.TLSCert == "",
		"LUCIUS_TLS_CLIENT_CA needs LUCIUS_TLS_CERT and LUCIUS_TLS_KEY: clients show certificates only over TLS")
	refuse(c.TLSClientCA != "" && c.AuthFile == "",
		"LUCIUS_TLS_CLIENT_CA needs LUCIUS_AUTH_FILE, which says who the certificates stand for")

	tables := append(c.Tables.All(), c.StepsTable, c.ProjectedTables.Jobs, c.ProjectedTables.Outbox, c.ProjectedTables.Events)
	slices.Sort(tables)
	for i := 1; i < len(tables); i++ {
		refuse(tables[i] == tables[i-1], "LUCIUS_…_TABLE: two tables are called %q", tables[i])
	}
	for _, role := range []string{RoleAPI, RoleRelay, RoleSweeper} {
		refuse(!c.Shared() && !c.Has(role),
			"LUCIUS_ROLES leaves out %q, but only one process can use LUCIUS_STORAGE_BACKEND %s", role, c.StorageBackend)
	}
	return problems
}

// CheckServe returns an error for settings of a store or a bus that is not used: a server
// would keep its jobs somewhere else, or wait for replies that come another way. Other
// commands may name a store with more variables set.
func (l *Loaded) CheckServe() error {
	if l.PostgresURL != "" && l.StorageBackend != BackendPostgres {
		return fmt.Errorf("LUCIUS_POSTGRES_URL is set, but LUCIUS_STORAGE_BACKEND is %s: set it to %s, or unset LUCIUS_POSTGRES_URL",
			l.StorageBackend, BackendPostgres)
	}
	if (l.TableConnection != "" || l.TableEndpoint != "") && !l.OnAzure() {
		return fmt.Errorf("LUCIUS_TABLE_CONNECTION or LUCIUS_TABLE_ENDPOINT is set, but LUCIUS_STORAGE_BACKEND is %s: "+
			"set it to %s or %s, or unset them", l.StorageBackend, BackendLedger, BackendTable)
	}
	for _, variable := range slices.Concat(namespaceVariables, replyVariables) {
		reply := slices.Contains(replyVariables, variable)
		switch {
		case !l.given[variable] || l.texts[variable] == "":
		case l.Bus != BusServiceBus && reply:
			return fmt.Errorf("%s is set, but LUCIUS_BUS is %s, which has no reply topics: "+
				"set LUCIUS_SERVICEBUS_CONNECTION or LUCIUS_SERVICEBUS_NAMESPACE, or unset %[1]s", variable, l.Bus)
		case l.Bus != BusServiceBus:
			return fmt.Errorf("%s is set, but LUCIUS_BUS is %s: unset one of them", variable, l.Bus)
		case reply && !l.ServiceBus.Replies:
			return fmt.Errorf("%s is set, but LUCIUS_SERVICEBUS_REPLIES is false, so that no reply topic is read: "+
				"unset one of them", variable)
		}
	}
	return nil
}

// sharedTopic returns a topic that directives and replies would share, or "".
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

// flagName returns the flag of a variable.
func flagName(variable string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(variable, "LUCIUS_")), "_", "-")
}

// Print writes the configuration, one variable a line, without its secrets.
func (l *Loaded) Print(w io.Writer) error {
	for _, s := range l.settings() {
		if _, err := fmt.Fprintf(w, "%s=%s\n", s.variable, s.shown(l.texts[s.variable])); err != nil {
			return fmt.Errorf("print the configuration: %w", err)
		}
	}
	return nil
}
