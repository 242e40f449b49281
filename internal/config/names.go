package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
)

// unknownVariables returns an error for each LUCIUS_ variable that is not a setting:
// a misspelled one would silently leave its setting at the default. The clientVariables,
// those of the tests, LUCIUS_TEST_, and those that Kubernetes makes for Services are ignored.
func unknownVariables(variables map[string]string, all []setting) []error {
	names := append([]string{stepTimeoutSeconds}, clientVariables...)
	for i := range all {
		names = append(names, all[i].variable)
	}
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		if slices.Contains(names, name) || strings.HasPrefix(name, "LUCIUS_TEST_") || ofService(name, variables) {
			continue
		}
		if strings.HasPrefix(name, temporalPrefix) || name == invokerURL {
			problems = append(problems, fmt.Errorf(
				"%s is not a setting, and nothing takes its place: Lucius needs no Temporal; unset it", name))
			continue
		}
		closest := "LUCIUS_LISTEN_ADDR"
		if name == inflightTable {
			closest = "LUCIUS_SCHEDULE_TABLE"
		} else if !addressLike.MatchString(name) {
			closest = slices.MinFunc(names, func(a, b string) int {
				return levenshtein.ComputeDistance(name, a) - levenshtein.ComputeDistance(name, b)
			})
		}
		problems = append(problems, fmt.Errorf("%s is not a setting: the closest one is %s; lucius serve --help lists all", name, closest))
	}
	return problems
}

// clientVariables are those of package cli, by which commands find their server, and that of
// the SDKs' tests, by which they find the program.
var clientVariables = []string{
	"LUCIUS_URL", "LUCIUS_TOKEN", "LUCIUS_TOKEN_FILE", "LUCIUS_CA_FILE", "LUCIUS_CLIENT_CERT", "LUCIUS_CLIENT_KEY",
	"LUCIUS_CONTEXT", "LUCIUS_CONFIG", "LUCIUS_BINARY",
}

// inflightTable is the sources' name for a table whose rows are in the schedule's.
const inflightTable = "LUCIUS_INFLIGHT_TABLE"

// The sources' names for settings of Temporal and of its worker.
const (
	temporalPrefix = "LUCIUS_TEMPORAL_"
	invokerURL     = "LUCIUS_INVOKER_URL"
)

// addressLike matches other servers' names for the setting of the listen address.
var addressLike = regexp.MustCompile(`^LUCIUS_((HTTP|SERVER|BIND|LISTEN)_?)?(PORT|HOST|ADDR|ADDRESS|BIND|LISTEN)$`)

// serviceVariable matches what Kubernetes and Docker add to a Service's name.
var serviceVariable = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)

// ofService reports whether Kubernetes made the variable: in the namespace of a Service
// lucius-api each container gets LUCIUS_API_SERVICE_HOST, LUCIUS_API_PORT and others.
func ofService(name string, variables map[string]string) bool {
	if at := serviceVariable.FindStringIndex(name); at != nil {
		_, announced := variables[name[:at[0]]+"_SERVICE_HOST"]
		return announced
	}
	return false
}

// The parts of a text that may be secret: the user of a URL, and the value of a
// signature, key or password in a URL or a connection string.
var (
	userOfURL    = regexp.MustCompile(`://[^\s"]*@`)
	secretMember = regexp.MustCompile(`(?i)((?:sig|signature|key|password|pwd|secret|token)=|whsec_)[^&;,\s"]+`)
)

// Mask replaces what may be secret in a setting, an error or a value of the log.
func Mask(text string) string {
	if !strings.ContainsAny(text, "@=_") { // Each expression needs one of them; logs mask most texts for nothing.
		return text
	}
	return secretMember.ReplaceAllString(userOfURL.ReplaceAllString(text, "://(set)@"), "${1}(set)")
}

// shown returns the setting's text with secrets masked.
func (s *setting) shown(text string) string {
	if text != "" && slices.Contains([]string{
		"LUCIUS_POSTGRES_URL", "LUCIUS_TABLE_CONNECTION", "LUCIUS_SERVICEBUS_CONNECTION", "LUCIUS_SERVICEBUS_ADMIN_CONNECTION",
		"LUCIUS_WEBHOOK_SECRETS",
	}, s.variable) {
		return "(set)"
	}
	return Mask(text)
}
