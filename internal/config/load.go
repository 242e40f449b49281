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

	"github.com/lucius-project/lucius/pkg/auth"
)

// stepTimeoutSeconds is the seeds' spelling of LUCIUS_STEP_RESULT_TIMEOUT.
const stepTimeoutSeconds = "LUCIUS_STEP_RESULT_TIMEOUT_SECONDS"

// Loaded is a configuration with the texts of its settings.
type Loaded struct {
	Config
	texts map[string]string
}

// Load reads flags, then the environment, which has entries NAME=value of which the last
// one counts, then the defaults. The error names every invalid value and its source, and
// every variable that is no setting.
func Load(args, environment []string, usage io.Writer) (*Loaded, *flag.FlagSet, error) {
	loaded := &Loaded{texts: map[string]string{}}
	variables := map[string]string{}
	for _, entry := range environment {
		if name, value, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "LUCIUS_") {
			variables[name] = value
		}
	}
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	flags.SetOutput(usage)
	all := loaded.settings()
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

	problems := unknownVariables(variables, all)
	for i, s := range all {
		text, from := s.text(*values[i], given[flagName(s.variable)], variables)
		loaded.texts[s.variable] = text
		if err := s.set(text); err != nil {
			problems = append(problems, fmt.Errorf("%s is %q, %s", from, s.shown(text), Mask(err.Error())))
		}
	}
	if len(problems) == 0 {
		problems = loaded.crossCheck()
	}
	return loaded, flags, errors.Join(problems...)
}

// text returns the setting's text and its source.
func (s *setting) text(flagValue string, given bool, variables map[string]string) (text, from string) {
	if given {
		return flagValue, "--" + flagName(s.variable)
	}
	if value, ok := variables[s.variable]; ok {
		return value, s.variable
	}
	if s.variable == "LUCIUS_STEP_RESULT_TIMEOUT" {
		if value, ok := variables[stepTimeoutSeconds]; ok {
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
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	refuse(c.MaxPayloadBytes > c.MaxBodyBytes, "LUCIUS_MAX_PAYLOAD_BYTES (%d) must not be larger than LUCIUS_MAX_BODY_BYTES (%d)",
		c.MaxPayloadBytes, c.MaxBodyBytes)
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
	refuse((c.TLSCert == "") != (c.TLSKey == ""), "LUCIUS_TLS_CERT and LUCIUS_TLS_KEY are needed together")
	refuse(c.TLSClientCA != "" && c.TLSCert == "",
		"LUCIUS_TLS_CLIENT_CA needs LUCIUS_TLS_CERT and LUCIUS_TLS_KEY: clients show certificates only over TLS")
	refuse(c.TLSClientCA != "" && c.AuthFile == "",
		"LUCIUS_TLS_CLIENT_CA needs LUCIUS_AUTH_FILE, which says who the certificates stand for")

	tables := append(slices.Concat(c.Tables.All(), c.Tables.Projected()), c.StepsTable)
	slices.Sort(tables)
	for i := 1; i < len(tables); i++ {
		refuse(tables[i] == tables[i-1], "LUCIUS_…_TABLE: two tables are called %q", tables[i])
	}
	for _, role := range []string{RoleAPI, RoleRelay, RoleSweeper} {
		refuse(!c.OnAzure() && !c.Has(role),
			"LUCIUS_ROLES leaves out %q, but only one process can use LUCIUS_STORAGE_BACKEND %s", role, c.StorageBackend)
	}
	return problems
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
