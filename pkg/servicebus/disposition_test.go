package servicebus_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/lucius-project/lucius/pkg/servicebus"
)

// cancelled is the condition of a send that must be retried.
const cancelled = "com.microsoft:operation-cancelled"

// The states of a delivery that have no reason.
var (
	accepted = described8(0x24, []byte{0x45})
	released = described8(0x26, []byte{0x45})
	modified = described8(0x27, list8(yes, no))
)

// frame is a frame of AMQP on channel 3.
func frame(body []byte) []byte {
	head := binary.BigEndian.AppendUint32(nil, uint32(8+len(body)))
	return append(append(head, 2, 0, 0, 3), body...)
}

// disposition is the performative with those fields.
func disposition(fields []byte) []byte { return described8(0x15, fields) }

// outcome is a frame that tells the sender of the deliveries 5 to 7 their state.
func outcome(state []byte) []byte {
	return frame(disposition(list32(yes, []byte{0x52, 5}, []byte{0x52, 7}, yes, state)))
}

// changed is the frame as it is read after its state was rewritten.
func changed(state []byte) []byte { return outcome(state) }

// rejection is a rejected state as the reader writes it.
func rejection(condition, description string) []byte {
	return described8(0x25, list32(described8(0x1d, list32(symbol32(condition), string32(description)))))
}

// rejectedFor is a rejected state as brokers write it.
func rejectedFor(condition string) []byte {
	return described8(0x25, list8(described8(0x1d, list8(symbol8(condition), []byte{0xa1, 2, 'n', 'o'}))))
}

// plain returns what the reader makes of incoming bytes.
func plain(t *testing.T, in []byte) []byte {
	t.Helper()
	out, err := servicebus.Plain(in)
	if err != nil {
		t.Fatalf("reading: %v", err)
	}
	return out
}

// The SDK takes released and modified for success, and a rejection with an unknown
// condition for a broken connection.
func TestPlain_OutcomesBecomeWhatTheyAre(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		state     []byte
		condition string // of the rejection that it becomes; empty if it stays
		text      string
	}{
		{"accepted", accepted, "", ""},
		{"accepted, large", described64(0x24, list32()), "", ""},
		{"received", described8(0x23, list8([]byte{0x43}, []byte{0x44})), "", ""},
		{"a state of a transaction", described8(0x34, list8([]byte{0xa0, 1, 1}, accepted)), "", ""},
		{"released", released, cancelled, "released"},
		{"released, large", described64(0x26, list32()), cancelled, "released"},
		{"modified", modified, cancelled, "modified"},
		{"modified without fields", described8(0x27, []byte{0x45}), cancelled, "modified"},
		{"a fault of the broker", rejectedFor("amqp:internal-error"), cancelled, "amqp:internal-error"},
		{"an unknown reason", rejectedFor("com.microsoft:argument-error"), "amqp:not-allowed", "com.microsoft:argument-error"},
		{"a reason that is not the message's", rejectedFor("amqp:decode-error"), "amqp:not-allowed", "amqp:decode-error"},
		{"an unknown reason, large", described64(0x25, list32(described64(0x1d, list32(symbol32("x:y"))))), "amqp:not-allowed", "x:y"},
		{"throttled", rejectedFor("com.microsoft:server-busy"), "", ""},
		{"time is up", rejectedFor("com.microsoft:timeout"), "", ""},
		{"cancelled", rejectedFor(cancelled), "", ""},
		{"disabled", rejectedFor("com.microsoft:entity-disabled"), "", ""},
		{"full", rejectedFor("amqp:resource-limit-exceeded"), "", ""},
		{"too large", rejectedFor("amqp:link:message-size-exceeded"), "", ""},
		{"no right", rejectedFor("amqp:unauthorized-access"), "", ""},
		{"missing", rejectedFor("amqp:not-found"), "", ""},
		{"not allowed", rejectedFor("amqp:not-allowed"), "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			in := outcome(test.state)
			want := in
			if test.condition != "" {
				want = changed(rejection(test.condition, test.text))
			}
			if got := plain(t, in); !bytes.Equal(got, want) {
				t.Errorf("read\n%x, want\n%x", got, want)
			}
		})
	}
}

// Dispositions for receivers, and frames that are no dispositions, stay as they are.
func TestPlain_LeavesAllOtherFrames(t *testing.T) {
	t.Parallel()
	told := list8(no, null, null, yes, released)
	for _, test := range []struct {
		name string
		in   []byte
	}{
		{"about what was received", frame(disposition(told))},
		{"about what was received, spelled out", frame(disposition(list8([]byte{0x56, 0}, null, null, yes, released)))},
		{"no state", frame(disposition(list8(yes, null, null, yes)))},
		{"a transfer that holds such a frame", frame(append(described8(0x14, list8(null)), outcome(released)...))},
		{"an empty frame", frame(nil)},
		{"one of SASL", []byte{0, 0, 0, 12, 2, 1, 0, 0, 0x00, 0x53, 0x44, 0x45}},
		{"a head that goes beyond the frame", append([]byte{0, 0, 0, 12, 200, 0, 0, 0}, 1, 2, 3, 4)},
		{"a head that is too short", append([]byte{0, 0, 0, 12, 1, 0, 0, 0}, 1, 2, 3, 4)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := plain(t, test.in); !bytes.Equal(got, test.in) {
				t.Errorf("read\n%x, want it unchanged:\n%x", got, test.in)
			}
		})
	}
}

func TestPlain_KeepsTheHead(t *testing.T) {
	t.Parallel()
	extended := func(fields []byte) []byte {
		body := disposition(fields)
		head := binary.BigEndian.AppendUint32(nil, uint32(12+len(body)))
		return append(append(head, 3, 0, 1, 2, 'm', 'o', 'r', 'e'), body...)
	}
	in := extended(list8([]byte{0x56, 1}, null, null, yes, modified))
	want := extended(list32([]byte{0x56, 1}, null, null, yes, rejection(cancelled, "modified")))
	if got := plain(t, in); !bytes.Equal(got, want) {
		t.Errorf("read\n%x, want\n%x", got, want)
	}
}
