{{/* What is refused, each in one line that names the value. What values.schema.json can say, it says before. */}}
{{- define "holdfast.check" -}}
{{- include "holdfast.checkReplicas" . -}}
{{- include "holdfast.checkTls" . -}}
{{- include "holdfast.checkSettings" . -}}
{{- end -}}

{{- define "holdfast.checkReplicas" -}}
{{- if not (has (int .Values.replicas) (list 1 3 5)) -}}
{{- fail (printf "replicas is %v: set it to 3 or 5, or to 1 for a trial (an even number survives no more lost nodes than one node less)" .Values.replicas) -}}
{{- end -}}
{{- $members := int .Values.members -}}
{{- if not (has $members (list 0 1 3 5)) -}}
{{- fail (printf "members is %d: set it to 3 or 5, or to 0 for as many as replicas" $members) -}}
{{- else if and $members (lt $members (int .Values.replicas)) -}}
{{- fail (printf "members is %d, less than replicas: set it to %d or more, or to 0" $members (int .Values.replicas)) -}}
{{- end -}}
{{- end -}}

{{- define "holdfast.checkTls" -}}
{{- $tls := .Values.tls -}}
{{- $sources := list $tls.existingSecret $tls.certManager.issuer.name | compact | len -}}
{{- if eq $sources 0 -}}
{{- fail "the nodes need a certificate: set tls.existingSecret or tls.certManager.issuer.name" -}}
{{- else if eq $sources 2 -}}
{{- fail "tls.existingSecret and tls.certManager.issuer.name are both set: leave one out" -}}
{{- end -}}
{{- end -}}

{{/* Settings that the chart decides, each with the value that decides it. */}}
{{- define "holdfast.decided" -}}
node_id: "the cluster, which gives each node its number"
join: "the chart"
listen: "listenAddress"
peer_listen: "listenAddress"
admin_listen: "listenAddress"
advertise: "clusterDomain and the pod's name"
peer_advertise: "clusterDomain and the pod's name"
data_dir: "the chart"
insecure: "the chart, whose nodes have TLS always"
tls_cert: "tls"
tls_key: "tls"
tls_ca: "tls"
cluster.members: "replicas and members"
cluster.cluster_name: "clusterName"
{{- end -}}

{{- define "holdfast.checkSettings" -}}
{{- $settings := .Values.settings | default dict -}}
{{- range $key, $by := include "holdfast.decided" . | fromYaml -}}
{{- $table := ternary ($settings.cluster | default dict) $settings (hasPrefix "cluster." $key) -}}
{{- if hasKey $table (trimPrefix "cluster." $key) -}}
{{- fail (printf "settings.%s cannot be set: it is decided by %s" $key $by) -}}
{{- end -}}
{{- end -}}
{{- end -}}
