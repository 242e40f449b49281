package commands

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Decode reads and checks a command. The error is a [apierror.Error] with the code
// [apierror.InvalidJSON], [apierror.InvalidEnvelope], [apierror.TooLarge] or
// [apierror.RefInvalid]. The command aliases body.
//
// If only the policy refuses the command, Decode returns the command with the error: it may
// have been accepted under another policy.
//
// Source: Option B spec, 5.2.
func Decode(body []byte, headers Headers, policy Policy) (*Command, error) {
	tree, err := ParseJSON(body)
	if err != nil {
		return nil, err
	}
	fields, isObject := tree.(map[string]any)
	texts, _ := Members(body)
	d := decoder{policy: policy, fields: fields, texts: texts}
	if !isObject {
		d.fail(apierror.InvalidEnvelope, "", "must be an object, not %s", describe(tree))
		return nil, d.err()
	}
	command := d.command(headers)
	if d.faulty {
		return nil, d.err()
	}
	same := make(map[string]any, len(hashed))
	for _, name := range hashed {
		same[name] = fields[name]
	}
	command.Hash = HashCanonical(same)
	return command, d.err()
}

// hashed are the fields that must be equal in two equal commands.
//
// Source: Ledger and state model, Canonical JSON for idempotency.
var hashed = []string{"tenant_id", "request_type", "input_ref", "output_ref", "payload", "schema_version"}

// known are the fields of a command.
var known = map[string]bool{
	"tenant_id": true, "request_type": true, "schema_version": true, "input_ref": true, "output_ref": true, "payload": true,
	"mode": true, "doc_id": true, "tags": true, "idempotency_key": true, "callback_urls": true, "workspace_ref": true,
	"correlation_id": true, "traceparent": true, "not_before": true, "not_after": true, "delay_seconds": true,
	"order_key": true, "order_mode": true, "priority": true,
}

// decoder collects the fields of one command and the violations among them.
type decoder struct {
	policy     Policy
	fields     map[string]any
	texts      map[string]json.RawMessage
	code       apierror.Code
	violations []apierror.Violation
	unnamed    int
	faulty     bool // There is a violation that any policy refuses.
}

// command reads all fields. Its result is valid unless it is faulty.
func (d *decoder) command(headers Headers) *Command {
	c := &Command{
		TenantID:      d.text("tenant_id", MaxTenantID, required),
		RequestType:   d.text("request_type", MaxRequestType, required),
		SchemaVersion: d.text("schema_version", MaxSchemaVersion, required),
		InputRef:      d.ref("input_ref", required),
		OutputRef:     d.ref("output_ref", required),
		Mode:          statemachine.Mode(d.word("mode", string(statemachine.ModeDefault), string(statemachine.ModeBurst))),
		DocID:         d.text("doc_id", MaxDocID, optional),
		Tags:          d.tags(),
		CallbackURLs:  d.callbackURLs(),
		WorkspaceRef:  d.ref("workspace_ref", optional),
		CorrelationID: d.text("correlation_id", MaxCorrelationID, optional),
		Traceparent:   d.traceparent(headers.Traceparent),
		OrderKey:      d.text("order_key", MaxOrderKey, optional),
		OrderMode: statemachine.OrderMode(d.word("order_mode",
			string(statemachine.OrderFIFO), string(statemachine.OrderNewest), string(statemachine.OrderReject))),
		Priority: d.word("priority", statemachine.ClassNormal.String(), statemachine.ClassBulk.String()),
	}
	c.NotBefore, c.NotAfter = d.dates(time.Now())
	c.Payload, c.PayloadTree = d.payload()
	c.IdempotencyKey = d.idempotencyKey(headers.IdempotencyKey)
	if c.Mode == statemachine.ModeBurst && d.fields["doc_id"] == nil {
		d.fail(apierror.InvalidEnvelope, "/doc_id", "is required in the mode %s", statemachine.ModeBurst)
	}
	for _, name := range slices.Sorted(maps.Keys(d.fields)) {
		if !known[name] {
			d.fail(apierror.InvalidEnvelope, string(jsontext.Pointer("").AppendToken(name)), "is not a field of a command")
		}
	}
	return c
}

// fail records a violation.
func (d *decoder) fail(code apierror.Code, pointer, format string, args ...any) {
	d.faulty = true
	d.forbid(code, pointer, format, args...)
}

// forbid records a violation of the policy.
func (d *decoder) forbid(code apierror.Code, pointer, format string, args ...any) {
	d.code = apierror.Foremost(d.code, code)
	if len(d.violations) == MaxViolations {
		d.unnamed++
		return
	}
	d.violations = append(d.violations, apierror.Violation{Pointer: pointer, Message: fmt.Sprintf(format, args...)})
}

// err returns the error of all violations, or nil if there are none.
func (d *decoder) err() error {
	if len(d.violations) == 0 {
		return nil
	}
	if d.unnamed > 0 {
		d.violations = append(d.violations, apierror.Violation{
			Message: fmt.Sprintf("has %d more violations", d.unnamed), Rest: d.unnamed,
		})
	}
	return &apierror.Error{Code: d.code, Errors: d.violations}
}

// presence says whether a field may be absent.
type presence bool

const (
	required presence = true
	optional presence = false
)

// present returns the field's value, or false if it is absent or null.
func (d *decoder) present(name string, need presence) (any, bool) {
	value := d.fields[name]
	if value == nil && need == required {
		d.fail(apierror.InvalidEnvelope, "/"+name, "is required")
	}
	return value, value != nil
}

// text reads an id or another short text.
func (d *decoder) text(name string, limit int, need presence) string {
	value, ok := d.present(name, need)
	if !ok {
		return ""
	}
	text, ok := value.(string)
	if !ok {
		d.fail(apierror.InvalidEnvelope, "/"+name, "must be a string, not %s", describe(value))
		return ""
	}
	d.checkText("/"+name, text, limit)
	return text
}

// checkText applies the rules of ids and short texts.
func (d *decoder) checkText(pointer, text string, limit int) {
	if code, fault := textFault(text, limit); fault != "" {
		d.fail(code, pointer, "%s", fault)
	}
}

// textFault returns what is wrong with an id or a short text, or "".
func textFault(text string, limit int) (apierror.Code, string) {
	switch {
	case strings.TrimSpace(text) == "":
		return apierror.InvalidEnvelope, "must not be empty or blank"
	case len(text) > limit:
		return apierror.TooLarge, fmt.Sprintf(tooLong, len(text), limit)
	case strings.ContainsFunc(text, unicode.IsControl):
		return apierror.InvalidEnvelope, "must not contain control characters"
	case strings.TrimSpace(text) != text:
		return apierror.InvalidEnvelope, "must not begin or end with a blank"
	case !utf8.ValidString(text): // of a header; a body that is not UTF-8 is refused whole
		return apierror.InvalidEnvelope, "must be UTF-8"
	}
	return "", ""
}

// tooLong is the message about a value that exceeds its limit, both in bytes.
const tooLong = "is %d bytes long; at most %d are allowed"

// tooLong records a value that exceeds its limit.
func (d *decoder) tooLong(pointer string, size, limit int) {
	d.fail(apierror.TooLarge, pointer, tooLong, size, limit)
}

// word reads a text that must be one of a few words.
func (d *decoder) word(name string, words ...string) string {
	value, ok := d.present(name, optional)
	if !ok {
		return ""
	}
	text, _ := value.(string)
	if !slices.Contains(words, text) {
		last := len(words) - 1
		d.fail(apierror.InvalidEnvelope, "/"+name, `must be "%s" or "%s"`, strings.Join(words[:last], `", "`), words[last])
		return ""
	}
	return text
}

// tags reads the tags.
func (d *decoder) tags() statemachine.Tags {
	value, ok := d.present("tags", optional)
	if !ok {
		return ""
	}
	object, ok := value.(map[string]any)
	switch {
	case !ok:
		d.fail(apierror.InvalidEnvelope, "/tags", "must be an object, not %s", describe(value))
		return ""
	case len(object) > statemachine.MaxTags:
		d.fail(apierror.TooLarge, "/tags", "has %d tags; at most %d are allowed", len(object), statemachine.MaxTags)
		return ""
	}
	tags := make(map[string]string, len(object))
	for _, key := range slices.Sorted(maps.Keys(object)) {
		pointer := string(jsontext.Pointer("/tags").AppendToken(key))
		text, ok := object[key].(string)
		switch fault := statemachine.TagFault(key, text); {
		case !ok:
			d.fail(apierror.InvalidEnvelope, pointer, "must be a string, not %s", describe(object[key]))
		case fault != "":
			d.fail(apierror.InvalidEnvelope, pointer, "%s", fault)
		case strings.HasPrefix(key, statemachine.SystemTag):
			d.fail(apierror.InvalidEnvelope, pointer, "is a tag of the system: a command has none that begins with %q",
				statemachine.SystemTag)
		default:
			tags[key] = text
		}
	}
	return statemachine.NewTags(tags)
}

// payload reads the payload, verbatim and as a tree.
func (d *decoder) payload() (json.RawMessage, map[string]any) {
	value, ok := d.present("payload", required)
	if !ok {
		return nil, nil
	}
	tree, ok := value.(map[string]any)
	if !ok {
		d.fail(apierror.InvalidEnvelope, "/payload", "must be an object, not %s", describe(value))
		return nil, nil
	}
	text := d.texts["payload"]
	if limit := cmp.Or(d.policy.MaxPayloadBytes, DefaultMaxPayload); len(text) > limit {
		d.forbid(apierror.TooLarge, "/payload", tooLong, len(text), limit)
	}
	return text, tree
}

// ref reads a reference: an object that is opaque except for its uri.
func (d *decoder) ref(name string, need presence) json.RawMessage {
	value, ok := d.present(name, need)
	if !ok {
		return nil
	}
	object, ok := value.(map[string]any)
	if !ok {
		d.fail(apierror.InvalidEnvelope, "/"+name, "must be an object, not %s", describe(value))
		return nil
	}
	text := d.texts[name]
	if len(text) > MaxRef {
		d.tooLong("/"+name, len(text), MaxRef)
	}
	d.checkURI("/"+name+"/uri", object["uri"])
	return text
}

// checkURI applies the rules of a reference's uri.
func (d *decoder) checkURI(pointer string, value any) {
	uri, ok := value.(string)
	switch {
	case value == nil:
		d.fail(apierror.RefInvalid, pointer, "is required")
	case !ok:
		d.fail(apierror.RefInvalid, pointer, "must be a string, not %s", describe(value))
	case strings.TrimSpace(uri) == "":
		d.fail(apierror.RefInvalid, pointer, "must not be empty or blank")
	case len(uri) > MaxURI:
		d.tooLong(pointer, len(uri), MaxURI)
	case strings.ContainsFunc(uri, unicode.IsControl):
		d.fail(apierror.RefInvalid, pointer, "must not contain control characters")
	case !d.policy.allows(uri):
		d.forbid(apierror.RefInvalid, pointer, "has a scheme or prefix that is not allowed here")
	}
}

// callbackURLs reads the list of webhook URLs.
func (d *decoder) callbackURLs() []string {
	value, ok := d.present("callback_urls", optional)
	if !ok {
		return nil
	}
	list, ok := value.([]any)
	if !ok {
		d.fail(apierror.InvalidEnvelope, "/callback_urls", "must be an array, not %s", describe(value))
		return nil
	}
	if len(list) > MaxCallbackURLs {
		d.fail(apierror.TooLarge, "/callback_urls", "has %d entries; at most %d are allowed", len(list), MaxCallbackURLs)
		return nil
	}
	urls := make([]string, len(list))
	for i, entry := range list {
		pointer := fmt.Sprintf("/callback_urls/%d", i)
		text, ok := entry.(string)
		switch {
		case !ok:
			d.fail(apierror.InvalidEnvelope, pointer, "must be a string, not %s", describe(entry))
		case len(text) > MaxCallbackURL:
			d.tooLong(pointer, len(text), MaxCallbackURL)
		default: // The sender checks again: a name may resolve differently by then.
			if fault := d.policy.callbackFault(text); fault != "" {
				d.forbid(apierror.InvalidEnvelope, pointer, "%s", fault)
			}
			urls[i] = text
		}
	}
	return urls
}

// dates reads when the job may begin and when it expires. A not_after that has passed is refused as the
// policy refuses: the command may have been accepted before.
func (d *decoder) dates(now time.Time) (notBefore, notAfter time.Time) {
	if notBefore, _ = d.date("not_before", now); !notBefore.After(now) {
		notBefore = time.Time{} // The job may begin at once.
	}
	notAfter, expires := d.date("not_after", now)
	if value, ok := d.present("delay_seconds", optional); ok {
		const most = int64(statemachine.MaxAhead / time.Second)
		number, _ := value.(json.Number)
		switch seconds, err := number.Int64(); {
		case err != nil || seconds < 0 || seconds > most:
			d.fail(apierror.InvalidEnvelope, "/delay_seconds", "must be a whole number from 0 to %d", most)
		case d.fields["not_before"] != nil:
			d.fail(apierror.InvalidEnvelope, "/delay_seconds", "must not be set if not_before is")
		case seconds > 0:
			notBefore = now.Add(time.Duration(seconds) * time.Second).UTC().Truncate(time.Millisecond)
		}
	}
	if expires && !(notAfter.After(now) && notAfter.After(notBefore)) {
		d.forbid(apierror.NotAfterPassed, "/not_after", "must be later than now and than not_before")
	}
	return notBefore, notAfter
}

// date reads a time, and reports whether there is a valid one.
func (d *decoder) date(name string, now time.Time) (time.Time, bool) {
	value, ok := d.present(name, optional)
	if !ok {
		return time.Time{}, false
	}
	text, _ := value.(string)
	switch at, err := time.Parse(time.RFC3339, text); {
	case err != nil:
		d.fail(apierror.InvalidEnvelope, "/"+name, "must be a time in the form of RFC 3339, such as 2026-01-28T02:00:00Z")
		return time.Time{}, false
	case at.After(now.Add(statemachine.MaxAhead)):
		d.fail(apierror.InvalidEnvelope, "/"+name, "must be at most 366 days ahead")
		return time.Time{}, false
	default:
		return at.UTC().Truncate(time.Millisecond), true
	}
}

// describe names the JSON type of a value.
func describe(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case json.Number:
		return "a number"
	case string:
		return "a string"
	case []any:
		return "an array"
	default:
		return "an object"
	}
}

// idempotencyKey reads the key from the body or from the header.
func (d *decoder) idempotencyKey(header string) string {
	key := d.text("idempotency_key", MaxIdempotencyKey, optional)
	if header == "" {
		return key
	}
	fromHeader, ok := unquote(header)
	switch {
	case !ok:
		d.fail(apierror.InvalidEnvelope, "/idempotency_key", "is malformed in the header: a quoted text must end with its quotation mark")
	case d.fields["idempotency_key"] == nil:
		d.checkText("/idempotency_key", fromHeader, MaxIdempotencyKey)
	case key != fromHeader:
		d.fail(apierror.InvalidEnvelope, "/idempotency_key", "differs from the Idempotency-Key header")
	}
	return fromHeader
}

// HeaderKey returns the idempotency key of an Idempotency-Key header, by the rules
// for commands; it is empty if the header is. The error is a [apierror.Error] with the
// code [apierror.InvalidEnvelope], or [apierror.TooLarge] beyond [MaxIdempotencyKey]
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
		if _, ok := statemachine.ParseTrace(header); !ok {
			return ""
		}
		return header
	}
	text, _ := value.(string)
	if _, ok := statemachine.ParseTrace(text); !ok {
		d.fail(apierror.InvalidEnvelope, "/traceparent", "must be a W3C traceparent: version-traceid-parentid-flags, in lower-case hex")
	}
	return text
}
