package commands

import (
	"cmp"
	"slices"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// orderByDocument is the [ProtocolOrder.Key] of a protocol that takes the doc_id.
const orderByDocument = "doc_id"

// maxOrderPrefix is the longest [ProtocolOrder.Prefix] in bytes.
const maxOrderPrefix = 128

// ProtocolOrder says which commands of a protocol run one after the other, and how. The zero value
// leaves the key to the commands.
type ProtocolOrder struct {
	// Key says what the order key of a command without an order_key is: its doc_id, or the string at a
	// JSON pointer in its payload. It is empty if such a command has no line.
	Key string
	// Prefix is put before a key that the protocol takes from a command.
	Prefix string
	// Mode is the mode of commands that name none; empty is fifo.
	Mode statemachine.OrderMode
	// OnFailure is block, continue, or empty for the default of the mode.
	OnFailure string
	// CancelsRunning says that a command of mode newest cancels jobs that have begun, too.
	CancelsRunning bool
	// MaxWaiting is the most jobs that may be before a new one in its line; 0 is [ledger.DefaultMaxWaiting].
	MaxWaiting int
	// Required refuses commands without a key.
	Required bool
}

// orderModes are the values of mode.
var orderModes = []string{string(statemachine.OrderFIFO), string(statemachine.OrderNewest), string(statemachine.OrderReject)}

// The values of on_failure and on_running.
const (
	failureBlocks    = "block"
	failureContinues = "continue"
	runningFinishes  = "finish"
	runningIsCut     = "cancel"
)

// orderDefinition is the order block of a protocol file.
type orderDefinition struct {
	Key        yamlScalar `yaml:"key"`
	Prefix     yamlScalar `yaml:"prefix"`
	Mode       yamlScalar `yaml:"mode"`
	OnFailure  yamlScalar `yaml:"on_failure"`
	OnRunning  yamlScalar `yaml:"on_running"`
	MaxWaiting yamlScalar `yaml:"max_waiting"`
	Required   yamlScalar `yaml:"required"`
}

// order checks the order block.
func (c *protocolChecker) order(d *orderDefinition) ProtocolOrder {
	at := schemaPath{"order"}
	o := ProtocolOrder{
		Key:        c.orderKey(at.to("key"), d.Key),
		Prefix:     c.orderPrefix(at.to("prefix"), d.Prefix),
		Mode:       statemachine.OrderMode(c.word(at.to("mode"), d.Mode, orderModes...)),
		OnFailure:  c.word(at.to("on_failure"), d.OnFailure, failureBlocks, failureContinues),
		MaxWaiting: c.whole(at.to("max_waiting"), d.MaxWaiting, ledger.MaxMaxWaiting),
		Required:   c.word(at.to("required"), d.Required, "true", "false") == "true",
	}
	o.CancelsRunning = c.word(at.to("on_running"), d.OnRunning, runningFinishes, runningIsCut) == runningIsCut
	if d.OnRunning.set && o.Mode != statemachine.OrderNewest {
		c.fail(at.to("on_running"), "needs the mode newest")
	}
	if d.Prefix.set && !d.Key.set {
		c.fail(at.to("prefix"), "needs a key, before which it is put")
	}
	return o
}

// orderKey checks what names the order key of a command.
func (c *protocolChecker) orderKey(at schemaPath, s yamlScalar) string {
	text, ok := c.text(at, s)
	if !ok || text == orderByDocument {
		return text
	}
	if !strings.HasPrefix(text, "/") || !jsontext.Pointer(text).IsValid() {
		c.fail(at, "is %q and must be doc_id, or a JSON pointer into the payload such as /customer/id", text)
	}
	return text
}

// orderPrefix checks what is put before a key.
func (c *protocolChecker) orderPrefix(at schemaPath, s yamlScalar) string {
	text, ok := c.text(at, s)
	switch {
	case !ok:
	case text == "":
		c.fail(at, "must not be empty")
	case len(text) > maxOrderPrefix:
		c.fail(at, tooLong, len(text), maxOrderPrefix)
	case strings.ContainsFunc(text, unicode.IsControl):
		c.fail(at, "must not contain control characters")
	case strings.TrimLeftFunc(text, unicode.IsSpace) != text:
		c.fail(at, "must not begin with a blank")
	}
	return text
}

// word checks a text that must be one of a few words; "" stands for not set.
func (c *protocolChecker) word(at schemaPath, s yamlScalar, words ...string) string {
	text, ok := c.text(at, s)
	if !ok {
		return ""
	}
	if !slices.Contains(words, text) {
		last := len(words) - 1
		c.fail(at, "is %q and must be %s or %s", text, strings.Join(words[:last], ", "), words[last])
	}
	return text
}

// order returns the order of the command's job. What the command names replaces what the protocol
// says. The error is a [*apierror.Error].
func (p *Protocol) order(command *Command) (order statemachine.Order, err error) {
	order.Key = command.OrderKey
	if order.Key == "" && (p.Order.Key != "" || p.Order.Required) {
		if order.Key, err = p.orderKey(command); err != nil {
			return order, err
		}
	}
	if order.Key == "" {
		if command.OrderMode != "" {
			return order, unfit(apierror.InvalidEnvelope, "/order_mode", "needs an order_key: the protocol %s gives the command none", p.ID)
		}
		return order, nil
	}
	order.Mode = cmp.Or(command.OrderMode, p.Order.Mode, statemachine.OrderFIFO)
	order.Blocks = p.Order.OnFailure == failureBlocks || p.Order.OnFailure == "" && order.Mode == statemachine.OrderFIFO
	order.CancelsRunning = p.Order.CancelsRunning && order.Mode == statemachine.OrderNewest
	return order, nil
}

// orderKey returns the key that the protocol takes from a command, "" if there is none.
func (p *Protocol) orderKey(command *Command) (string, error) {
	pointer, code := "/payload"+p.Order.Key, apierror.PayloadInvalid
	value, _ := ledger.Lookup(command.PayloadTree, p.Order.Key)
	switch p.Order.Key {
	case "":
		pointer, code, value = "/order_key", apierror.InvalidEnvelope, nil
	case orderByDocument:
		pointer, code, value = "/doc_id", apierror.InvalidEnvelope, nil
		if command.DocID != "" {
			value = command.DocID
		}
	}
	text, ok := value.(string)
	switch {
	case ok:
		kind, fault := textFault(text, MaxOrderKey-len(p.Order.Prefix))
		if fault == "" {
			return p.Order.Prefix + text, nil
		}
		if kind == apierror.TooLarge {
			code = kind
		}
		return "", unfit(code, pointer, "%s, because the protocol %s takes the order key from it", fault, p.ID)
	case !p.Order.Required:
		return "", nil
	case value == nil:
		return "", unfit(code, pointer, "is required, because the protocol %s orders its commands by a key", p.ID)
	default:
		return "", unfit(code, pointer, "must be a string, not %s, because the protocol %s takes the order key from it",
			describe(value), p.ID)
	}
}

// sameLine refuses a corrected payload from which the protocol takes another order key than from that of the old job. The rerun
// stays in the line of the old job, so it would run next to the jobs of the other key.
func (p *Protocol) sameLine(job *statemachine.Job, was any, edited *Command) error {
	members, _ := was.(map[string]any)
	payload, _ := members["payload"].(map[string]any)
	key, err := p.orderKey(&Command{DocID: job.DocID, PayloadTree: payload})
	if err == nil && key == job.Order.Key { // Else the command named its key, or another protocol did.
		now, err := p.orderKey(edited)
		if err == nil && now != key {
			err = unfit(apierror.PayloadInvalid, "/payload"+p.Order.Key, "must not change, because the protocol %s takes the order key "+
				"from it, and a rerun stays in its line: submit a new command, and release this job if it blocks the line", p.ID)
		}
		return err
	}
	return nil
}
