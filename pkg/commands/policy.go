package commands

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode"
)

// Policy holds the operator's settings for commands.
type Policy struct {
	// AllowedRefs are the schemes ("s3") and the prefixes
	// ("https://store.example.com/in/") of which a reference's uri must have one.
	// An entry with a colon is a prefix. One that ends neither in a slash nor in
	// a colon ends at a segment: s3://bucket allows s3://bucket/a and not
	// s3://bucket2/a. A uri that leaves its prefix by a ".." segment is not
	// allowed. Optional. Defaults to any uri.
	AllowedRefs []string
	// MaxPayloadBytes is the largest payload, as sent; at most
	// [LargestPayload]. Optional. Defaults to [DefaultMaxPayload].
	MaxPayloadBytes int
	// CheckCallbackURL returns why no webhook may go to the URL, as the continuation
	// of "callback URL …", or "". It is called before the other checks, because it
	// knows the allowed schemes. Optional. Defaults to accepting any absolute http or
	// https URL. It must not block.
	CheckCallbackURL func(url string) string
}

var scheme = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*$`)

// Validate names the first invalid field.
func (p Policy) Validate() error {
	if p.MaxPayloadBytes < 0 || p.MaxPayloadBytes > LargestPayload {
		return fmt.Errorf("MaxPayloadBytes is %d and must be from 0 to %d", p.MaxPayloadBytes, LargestPayload)
	}
	for i, entry := range p.AllowedRefs {
		name, _, _ := strings.Cut(entry, ":")
		if !scheme.MatchString(name) || strings.ContainsFunc(entry, unicode.IsControl) {
			return fmt.Errorf("AllowedRefs[%d] is %q and must be a scheme such as s3, or a prefix that begins with one", i, entry)
		}
	}
	return nil
}

// maxPayload returns the limit or its default.
func (p Policy) maxPayload() int {
	if p.MaxPayloadBytes == 0 {
		return DefaultMaxPayload
	}
	return p.MaxPayloadBytes
}

// allows reports whether a reference may have the uri.
//
// Source: Option B spec, 5.2.
func (p Policy) allows(uri string) bool {
	if len(p.AllowedRefs) == 0 {
		return true
	}
	for _, entry := range p.AllowedRefs {
		if !strings.Contains(entry, ":") {
			if name, _, found := strings.Cut(uri, ":"); found && strings.EqualFold(name, entry) {
				return true
			}
			continue
		}
		if hasPrefix(uri, entry) && !hasDotSegment(uri) {
			return true
		}
	}
	return false
}

// callbackFault returns why no webhook may go to the URL, or "".
func (p Policy) callbackFault(text string) string {
	if p.CheckCallbackURL != nil {
		if fault := p.CheckCallbackURL(text); fault != "" {
			return fault
		}
	}
	target, err := url.Parse(text)
	switch {
	case err != nil || target.Scheme != "http" && target.Scheme != "https" || target.Hostname() == "":
		return "must be an absolute http or https URL"
	case target.User != nil:
		return "must not carry a user name or password"
	}
	return ""
}

// hasPrefix reports whether uri begins with prefix, and prefix ends at a segment.
func hasPrefix(uri, prefix string) bool {
	rest, found := strings.CutPrefix(uri, prefix)
	if !found || rest == "" {
		return found
	}
	return strings.ContainsRune("/:", rune(prefix[len(prefix)-1])) || strings.ContainsRune("/?#", rune(rest[0]))
}

// plainDots decodes the encodings in which a dot segment may hide.
var plainDots = strings.NewReplacer("%2e", ".", "%2E", ".", "%2f", "/", "%2F", "/", "%5c", "/", "%5C", "/", `\`, "/")

// hasDotSegment reports whether a segment of the uri's path is "." or "..".
func hasDotSegment(uri string) bool {
	path := uri
	if end := strings.IndexAny(uri, "?#"); end >= 0 {
		path = uri[:end]
	}
	for segment := range strings.SplitSeq(plainDots.Replace(path), "/") {
		if segment == "." || segment == ".." {
			return true
		}
	}
	return false
}
