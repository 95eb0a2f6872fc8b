package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"google.golang.org/protobuf/types/known/emptypb"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
)

type member struct {
	ID         string   `json:"id"`
	Hostname   string   `json:"hostname"`
	PeerURLs   []string `json:"peerURLs"`
	ClientURLs []string `json:"clientURLs"`
	Learner    bool     `json:"learner"`
}

type service struct {
	ID      string `json:"id"`
	State   string `json:"state"`
	Healthy bool   `json:"healthy"`
	Message string `json:"message"`
}

type volume struct {
	Phase    string `json:"phase"`
	Type     string `json:"type"`
	Location string `json:"location"`
	ParentID string `json:"parentID"`
}

type event struct {
	Type  string `json:"type"`
	Actor string `json:"actor"`
	What  string `json:"what"`
}

type found struct {
	HardwareUUID string `json:"hardwareUUID"`
	Stage        string `json:"stage"`
	Version      string `json:"version"`
}

// report is what Talos' client library made of the simulated machine's answers.
type report struct {
	Tag            string            `json:"tag"`
	Platform       string            `json:"platform"`
	Mode           string            `json:"mode"`
	RBAC           bool              `json:"rbac"`
	Hostname       string            `json:"hostname"`
	BootTime       uint64            `json:"bootTime"`
	BootIDFile     string            `json:"bootIDFile"`
	Disks          []string          `json:"disks"`
	Services       []service         `json:"services"`
	Members        []member          `json:"members"`
	LocalMembers   []member          `json:"localMembers"`
	MemberID       string            `json:"memberID"`
	Leader         string            `json:"leader"`
	Learner        bool              `json:"learner"`
	RaftTerm       uint64            `json:"raftTerm"`
	Alarms         int               `json:"alarms"`
	SnapshotBytes  int64             `json:"snapshotBytes"`
	Resources      map[string]string `json:"resources"`
	Volumes        map[string]volume `json:"volumes"`
	MissingIs      string            `json:"missingIs"`
	UnknownTypeIs  string            `json:"unknownTypeIs"`
	GoneMemberIs   string            `json:"goneMemberIs"`
	EmptyConfigIs  string            `json:"emptyConfigIs"`
	ForfeitedTo    string            `json:"forfeitedTo"`
	MembersAfter   []member          `json:"membersAfter"`
	Hello          bool              `json:"hello"`
	Actor          string            `json:"actor"`
	Events         []event           `json:"events"`
	Maintenance    found             `json:"maintenance"`
	EtcdStatusThen string            `json:"etcdStatusThen"`
}

func drive(ctx context.Context, talosconfig, node string) (*report, error) {
	c, err := client.New(ctx, client.WithConfigFromFile(talosconfig), client.WithEndpoints(node))
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	defer c.Close() //nolint:errcheck

	r := &report{Resources: map[string]string{}, Volumes: map[string]volume{}}

	for _, step := range []struct {
		name string
		do   func(context.Context, *client.Client) error
	}{
		{"machine", r.machine},
		{"etcd", r.etcd},
		{"resources", r.resources},
		{"refusals", r.refusals},
		{"leave and reset", r.remove},
	} {
		if err := step.do(ctx, c); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
	}

	return r, r.maintenance(ctx, node)
}

func (r *report) machine(ctx context.Context, c *client.Client) error {
	version, err := c.Version(ctx)
	if err != nil {
		return err
	}

	message := version.GetMessages()[0]
	r.Tag = message.GetVersion().GetTag()
	r.Platform, r.Mode = message.GetPlatform().GetName(), message.GetPlatform().GetMode()
	r.RBAC = message.GetFeatures().GetRbac()

	hostname, err := c.MachineClient.Hostname(ctx, &emptypb.Empty{})
	if err != nil {
		return err
	}

	r.Hostname = hostname.GetMessages()[0].GetHostname()

	stat, err := c.MachineClient.SystemStat(ctx, &emptypb.Empty{})
	if err != nil {
		return err
	}

	r.BootTime = stat.GetMessages()[0].GetBootTime()

	file, err := c.Read(ctx, "/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}

	bootID, err := io.ReadAll(file)
	if err != nil {
		return err
	}

	r.BootIDFile = strings.TrimSpace(string(bootID))

	disks, err := c.Disks(ctx)
	if err != nil {
		return err
	}

	for _, disk := range disks.GetMessages()[0].GetDisks() {
		r.Disks = append(r.Disks, disk.GetDeviceName())
	}

	services, err := c.ServiceList(ctx)
	if err != nil {
		return err
	}

	for _, s := range services.GetMessages()[0].GetServices() {
		r.Services = append(r.Services, service{
			ID:      s.GetId(),
			State:   s.GetState(),
			Healthy: s.GetHealth().GetHealthy(),
			Message: s.GetHealth().GetLastMessage(),
		})
	}

	return nil
}

func members(ctx context.Context, c *client.Client, local bool) ([]member, error) {
	list, err := c.EtcdMemberList(ctx, &machineapi.EtcdMemberListRequest{QueryLocal: local})
	if err != nil {
		return nil, err
	}

	var all []member

	for _, m := range list.GetMessages()[0].GetMembers() {
		all = append(all, member{
			ID:         etcd.FormatMemberID(m.GetId()),
			Hostname:   m.GetHostname(),
			PeerURLs:   m.GetPeerUrls(),
			ClientURLs: m.GetClientUrls(),
			Learner:    m.GetIsLearner(),
		})
	}

	return all, nil
}

func (r *report) etcd(ctx context.Context, c *client.Client) error {
	var err error

	if r.Members, err = members(ctx, c, false); err != nil {
		return err
	}

	if r.LocalMembers, err = members(ctx, c, true); err != nil {
		return err
	}

	status, err := c.EtcdStatus(ctx)
	if err != nil {
		return err
	}

	s := status.GetMessages()[0].GetMemberStatus()
	r.MemberID, r.Leader = etcd.FormatMemberID(s.GetMemberId()), etcd.FormatMemberID(s.GetLeader())
	r.Learner, r.RaftTerm = s.GetIsLearner(), s.GetRaftTerm()

	alarms, err := c.EtcdAlarmList(ctx)
	if err != nil {
		return err
	}

	for _, message := range alarms.GetMessages() {
		r.Alarms += len(message.GetMemberAlarms())
	}

	snapshot, err := c.EtcdSnapshot(ctx, &machineapi.EtcdSnapshotRequest{})
	if err != nil {
		return err
	}

	r.SnapshotBytes, err = io.Copy(io.Discard, snapshot)

	return err
}

// get reads a resource into Talos' own type for it.
func get[T meta.ResourceWithRD](ctx context.Context, c *client.Client, id resource.ID, name string, into map[string]string, value func(T) string) error {
	found, err := safe.StateGetByID[T](ctx, c.COSI, id)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}

	into[name] = value(found)

	return nil
}

func (r *report) resources(ctx context.Context, c *client.Client) error {
	err := errors.Join(
		get(ctx, c, hardware.SystemInformationID, "hardwareUUID", r.Resources, func(s *hardware.SystemInformation) string {
			return s.TypedSpec().UUID
		}),
		get(ctx, c, runtime.MachineStatusID, "stage", r.Resources, func(s *runtime.MachineStatus) string {
			return fmt.Sprintf("%s ready=%t", s.TypedSpec().Stage, s.TypedSpec().Status.Ready)
		}),
		get(ctx, c, etcd.LocalMemberID, "memberID", r.Resources, func(s *etcd.Member) string {
			return s.TypedSpec().MemberID
		}),
		get(ctx, c, cluster.LocalIdentity, "nodeID", r.Resources, func(s *cluster.Identity) string {
			return s.TypedSpec().NodeID
		}),
		get(ctx, c, k8s.NodenameID, "nodename", r.Resources, func(s *k8s.Nodename) string {
			return s.TypedSpec().Nodename
		}),
		get(ctx, c, config.MachineTypeID, "machineType", r.Resources, func(s *config.MachineType) string {
			return s.MachineType().String()
		}),
		get(ctx, c, runtime.BootIDID, "bootID", r.Resources, func(s *runtime.BootID) string {
			return s.TypedSpec().BootID
		}),
		get(ctx, c, "version", "version", r.Resources, func(s *runtime.Version) string {
			return s.TypedSpec().Version
		}),
		get(ctx, c, runtime.KernelCmdlineID, "cmdline", r.Resources, func(s *runtime.KernelCmdline) string {
			return s.TypedSpec().Cmdline
		}),
		get(ctx, c, runtime.PlatformMetadataID, "platform", r.Resources, func(s *runtime.PlatformMetadata) string {
			return s.TypedSpec().Platform
		}),
		get(ctx, c, block.SystemDiskID, "systemDisk", r.Resources, func(s *block.SystemDisk) string {
			return s.TypedSpec().DevPath
		}),
		get(ctx, c, network.HostnameID, "hostname", r.Resources, func(s *network.HostnameStatus) string {
			return s.TypedSpec().Hostname
		}),
		get(ctx, c, "etcd", "etcdService", r.Resources, func(s *v1alpha1.Service) string {
			return fmt.Sprintf("running=%t healthy=%t", s.TypedSpec().Running, s.TypedSpec().Healthy)
		}),
	)
	if err != nil {
		return err
	}

	volumes, err := safe.StateListAll[*block.VolumeStatus](ctx, c.COSI)
	if err != nil {
		return err
	}

	for v := range volumes.All() {
		spec := v.TypedSpec()
		r.Volumes[v.Metadata().ID()] = volume{
			Phase:    spec.Phase.String(),
			Type:     spec.Type.String(),
			Location: spec.Location,
			ParentID: spec.ParentID,
		}
	}

	return nil
}

func (r *report) refusals(ctx context.Context, c *client.Client) error {
	_, err := safe.StateGetByID[*cluster.Identity](ctx, c.COSI, "no-such")
	r.MissingIs = kind(err)

	_, err = c.COSI.Get(ctx, resource.NewMetadata("runtime", "NoSuchThings.talos.dev", "x", resource.VersionUndefined))
	r.UnknownTypeIs = kind(err)

	err = c.EtcdRemoveMemberByID(ctx, &machineapi.EtcdRemoveMemberByIDRequest{MemberId: 0xfeedbeefcafe})
	r.GoneMemberIs = kind(err)

	_, err = c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Mode: machineapi.ApplyConfigurationRequest_NO_REBOOT})
	r.EmptyConfigIs = kind(err)

	return nil
}

func kind(err error) string {
	switch {
	case err == nil:
		return "no error"
	case state.IsNotFoundError(err):
		return "resource not found"
	default:
		return client.StatusCode(err).String()
	}
}

// remove hands leadership over, leaves etcd and resets the machine, watching its events.
func (r *report) remove(ctx context.Context, c *client.Client) error {
	stream, err := c.Events(ctx)
	if err != nil {
		return err
	}

	hello, err := stream.Recv()
	if err != nil {
		return err
	}

	r.Hello = hello.GetData().GetTypeUrl() == ""

	forfeited, err := c.EtcdForfeitLeadership(ctx, &machineapi.EtcdForfeitLeadershipRequest{})
	if err != nil {
		return err
	}

	r.ForfeitedTo = forfeited.GetMessages()[0].GetMember()

	if err := c.EtcdLeaveCluster(ctx, &machineapi.EtcdLeaveClusterRequest{}); err != nil {
		return err
	}

	if r.MembersAfter, err = members(ctx, c, false); err != nil {
		return err
	}

	reset, err := c.ResetGenericWithResponse(ctx, &machineapi.ResetRequest{
		Graceful: false,
		Reboot:   true,
		SystemPartitionsToWipe: []*machineapi.ResetPartitionSpec{
			{Label: "STATE", Wipe: true},
			{Label: "EPHEMERAL", Wipe: true},
		},
	})
	if err != nil {
		return err
	}

	r.Actor = reset.GetMessages()[0].GetActorId()

	for {
		message, err := stream.Recv()
		if err != nil {
			// The machine stops its services, this one among them.
			return nil
		}

		e, err := client.UnmarshalEvent(message)
		if err != nil {
			continue
		}

		entry := event{Type: string(e.Payload.ProtoReflect().Descriptor().Name()), Actor: e.ActorID}

		switch payload := e.Payload.(type) {
		case *machineapi.SequenceEvent:
			entry.What = fmt.Sprintf("%s %s", payload.GetSequence(), payload.GetAction())
		case *machineapi.TaskEvent:
			entry.What = fmt.Sprintf("%s %s", payload.GetTask(), payload.GetAction())
		case *machineapi.PhaseEvent:
			entry.What = fmt.Sprintf("%s %s", payload.GetPhase(), payload.GetAction())
		case *machineapi.MachineStatusEvent:
			entry.What = payload.GetStage().String()
		}

		r.Events = append(r.Events, entry)
	}
}

// maintenance asks the machine without credentials, until it is back.
func (r *report) maintenance(ctx context.Context, node string) error {
	for {
		found, err := ask(ctx, node, r)
		if err == nil && found.Stage == "maintenance" {
			r.Maintenance = found

			return nil
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("not in maintenance: %w (last answer: %v)", ctx.Err(), err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func ask(ctx context.Context, node string, r *report) (found, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()

	c, err := client.New(ctx, client.WithMaintenanceMode(node, nil))
	if err != nil {
		return found{}, err
	}
	defer c.Close() //nolint:errcheck

	status, err := safe.StateGetByID[*runtime.MachineStatus](ctx, c.COSI, runtime.MachineStatusID)
	if err != nil {
		return found{}, err
	}

	information, err := safe.StateGetByID[*hardware.SystemInformation](ctx, c.COSI, hardware.SystemInformationID)
	if err != nil {
		return found{}, err
	}

	version, err := safe.StateGetByID[*runtime.Version](ctx, c.COSI, "version")
	if err != nil {
		return found{}, err
	}

	_, err = c.EtcdStatus(ctx)
	r.EtcdStatusThen = kind(err)

	return found{
		HardwareUUID: information.TypedSpec().UUID,
		Stage:        status.TypedSpec().Stage.String(),
		Version:      version.TypedSpec().Version,
	}, nil
}
