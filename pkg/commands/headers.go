package commands

import (
	"strings"

	"github.com/lucius-project/lucius/pkg/problem"
)

// idempotencyKey reads the key from the body or from the header.
func (d *decoder) idempotencyKey(header string) string {
	key := d.text("idempotency_key", MaxIdempotencyKey, optional)
	if header == "" {
		return key
	}
	fromHeader, ok := unquote(header)
	switch {
	case !ok:
		d.fail(problem.InvalidEnvelope, "/idempotency_key", "is malformed in the header: a quoted text must end with its quotation mark")
	case d.fields["idempotency_key"] == nil:
		d.checkText("/idempotency_key", fromHeader, MaxIdempotencyKey)
	case key != fromHeader:
		d.fail(problem.InvalidEnvelope, "/idempotency_key", "differs from the Idempotency-Key header")
	}
	return fromHeader
}

// HeaderKey returns the idempotency key of an Idempotency-Key header, by the rules
// for commands; it is empty if the header is. The error is a [problem.Error] with the
// code [problem.InvalidEnvelope], or [problem.TooLarge] beyond [MaxIdempotencyKey]
// bytes.
func HeaderKey(header string) (string, error) {
	var d decoder
	key := d.idempotencyKey(header)
	for i := range d.violations {
		fault := &d.violations[i]
		fault.Pointer, fault.Message = "", "Idempotency-Key "+fault.Message // The key is not in the body.
	}
	return key, d.err()
}

// unquote returns the text of a header that is a String of RFC 9651, as the
// Idempotency-Key header of the IETF draft is. Many clients send the bare text,
// which is returned unchanged.
func unquote(header string) (string, bool) {
	rest, quoted := strings.CutPrefix(header, `"`)
	if !quoted {
		return header, true
	}
	var text strings.Builder
	for i := 0; i < len(rest); i++ {
		switch c := rest[i]; {
		case c == '"':
			return text.String(), i == len(rest)-1
		case c != '\\':
			text.WriteByte(c)
		case i+1 < len(rest) && (rest[i+1] == '"' || rest[i+1] == '\\'):
			i++
			text.WriteByte(rest[i])
		default:
			return "", false
		}
	}
	return "", false
}

// traceparent reads the trace context from the body, else from the header.
func (d *decoder) traceparent(header string) string {
	value, ok := d.present("traceparent", optional)
	if !ok {
		if !isTraceparent(header) {
			return ""
		}
		return header
	}
	text, _ := value.(string)
	if !isTraceparent(text) {
		d.fail(problem.InvalidEnvelope, "/traceparent", "must be a W3C traceparent: version-traceid-parentid-flags, in lower-case hex")
	}
	return text
}

// isTraceparent reports whether text is a traceparent of W3C Trace Context with
// the four fields of version 00.
func isTraceparent(text string) bool {
	fields := strings.Split(text, "-")
	if len(fields) != 4 {
		return false
	}
	version, traceID, parentID, flags := fields[0], fields[1], fields[2], fields[3]
	return isHex(version, 2) && version != "ff" && isHex(flags, 2) &&
		isHex(traceID, 32) && strings.Trim(traceID, "0") != "" &&
		isHex(parentID, 16) && strings.Trim(parentID, "0") != ""
}

// isHex reports whether text is exactly n lower-case hexadecimal digits.
func isHex(text string, digits int) bool {
	return len(text) == digits && strings.Trim(text, "0123456789abcdef") == ""
}
