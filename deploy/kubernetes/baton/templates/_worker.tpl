{{/* The pod of a worker. Argument: `dict "root" $ "name" NAME "pool" POOL`. */}}
{{- define "baton.worker" -}}
{{- $root := .root }}
{{- $pool := .pool }}
{{- $name := include "baton.name" $root }}
{{- $authority := and $root.Values.tls.secretName $root.Values.tls.privateAuthority }}
{{- $sandboxed := eq $pool.sandbox "user-namespace" }}
metadata:
  labels: {{- include "baton.labels" $root | nindent 4 }}
    app.kubernetes.io/component: worker
    baton/pool: {{ .name }}
  annotations:
    # If the autoscaler moved a worker to free its node, the worker's cells would end.
    cluster-autoscaler.kubernetes.io/safe-to-evict: "false"
    {{- if ne $pool.kind "scaled-job" }}
    checksum/config: {{ include (print $root.Template.BasePath "/worker-config.yaml") $root | sha256sum }}
    {{- end }}
    {{- with $pool.annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ $name }}-worker
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- include "baton.pullSecrets" $root | nindent 2 }}
  restartPolicy: {{ eq $pool.kind "scaled-job" | ternary "OnFailure" "Always" }}
  # Time for running cells to end, then for their results to reach the broker, and two minutes for everything else.
  terminationGracePeriodSeconds: {{ add (int $pool.stopGraceSeconds) (int $pool.handoverSeconds) 120 }}
  {{- if $sandboxed }}
  # With a user namespace, root in the pod has no rights on the node, and bubblewrap may mount a /proc of its own.
  hostUsers: false
  {{- end }}
  {{- with $pool.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with $pool.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 1000
    runAsGroup: 1000
    fsGroup: 1000
    seccompProfile: {{ $sandboxed | ternary $pool.seccompProfile (dict "type" "RuntimeDefault") | toJson }}
    {{- if $sandboxed }}
    appArmorProfile: {{ $pool.appArmorProfile | toJson }}
    {{- end }}
  containers:
    - name: worker
      image: {{ $root.Values.images.worker | quote }}
      imagePullPolicy: {{ $root.Values.images.pullPolicy }}
      args: [worker]
      env:
        - name: BATON_CONFIG
          value: /etc/baton/config/{{ .name }}.toml
        - name: BATON_WORKER_NAME
          valueFrom: { fieldRef: { fieldPath: metadata.name } }
        - name: HOME
          value: /var/lib/baton-worker
      securityContext: {{- include "baton.restricted" $root | nindent 8 }}
        {{- if $sandboxed }}
        procMount: Unmasked
        {{- end }}
      {{- $resources := deepCopy $pool.resources }}
      {{- if $pool.gpu.claim.deviceClass }}
      {{- $_ := set $resources "claims" (list (dict "name" "gpu")) }}
      {{- else if gt (int $pool.gpu.count) 0 }}
      {{- $limits := $resources.limits | default dict }}
      {{- $_ := set $limits $pool.gpu.resource (int $pool.gpu.count) }}
      {{- $_ := set $resources "limits" $limits }}
      {{- end }}
      resources: {{- toYaml $resources | nindent 8 }}
      volumeMounts:
        - { name: config, mountPath: /etc/baton/config, readOnly: true }
        - { name: token, mountPath: /etc/baton/token, readOnly: true }
        {{- if $authority }}
        - { name: authority, mountPath: /etc/baton/authority, readOnly: true }
        {{- end }}
        - { name: scratch, mountPath: /var/lib/baton-worker }
        - { name: run, mountPath: /run/baton-worker }
        - { name: tmp, mountPath: /tmp }
        - { name: shared-memory, mountPath: /dev/shm }
  volumes:
    - name: config
      configMap: { name: {{ $name }}-workers }
    - name: token
      secret:
        secretName: {{ include "baton.tokens" $root }}
        defaultMode: 0440
        items: [{ key: pool-{{ .name }}, path: pool }]
    {{- if $authority }}
    - name: authority
      secret:
        secretName: {{ $root.Values.tls.secretName }}
        defaultMode: 0440
        # Without the private key, which only the broker gets.
        items: [{ key: ca.crt, path: ca.crt }]
    {{- end }}
    - name: scratch
      emptyDir: { sizeLimit: {{ $pool.scratch }} }
    - name: run
      emptyDir: { medium: Memory, sizeLimit: 64Mi }
    - name: tmp
      emptyDir: { sizeLimit: {{ $pool.scratch }} }
    - name: shared-memory
      emptyDir: { medium: Memory, sizeLimit: {{ $pool.sharedMemory }} }
  {{- if $pool.gpu.claim.deviceClass }}
  resourceClaims:
    - name: gpu
      resourceClaimTemplateName: {{ $name }}-{{ .name }}
  {{- end }}
  {{- with $pool.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pool.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pool.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
